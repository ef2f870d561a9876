"""A pure model of the counters, and random histories that hold the real ones against it.

The model is dictionaries: what is held by whom, what was used, what a dead process had been told,
how full a rate is. A history reserves, extends, begins, settles twice, cancels, loses processes,
moves the clock over leases and midnights, flushes the server and comes back from the ledger. There
are hard quotas, a soft budget, a rate, places, and prompts that wait or that a cache gave back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from redis import Redis

from gateway.domain.counters import (
    Answer,
    Begun,
    Extend,
    Extended,
    Gone,
    Held,
    HoldAgain,
    Keep,
    Repair,
    Settle,
    Settled,
)
from gateway.domain.limits import BASE_S, Amounts, Limit, Limits, Told
from gateway.domain.quota import Metric, Quota, ScopeKind
from gateway.domain.window import Window
from gateway.store.quota_counters import SCRIPT
from tests.gateway.store.quota_harness import LEASE_S, Counters, limits_of

KEY_CAP, TENANT_CAP, MAX_RUNNING, MAX_QUEUED = 600, 1000, 4, 500
# Twenty a second: whole numbers, as the clock moves by whole seconds.
RATE, RATE_S = 1200, 20
# So soft that it is passed; a token has one price.
BUDGET, NANO = 100, 3
DAY_S = 86_400
LEASE_US = LEASE_S * 1_000_000


# A token of input, which weighs as much in a rate.
ONE_TOKEN = Told(1, rate_tokens=1)


@dataclass
class Request:
    """One request as the model has it; `told` is what its process last said of its use."""

    day: int
    tokens: int
    prompt: int
    lease_s: float
    told: int = 0
    waits: bool = True


@dataclass
class Model:
    """Say what the counters ought to hold; `rows` are the ledger: request → (day, tokens).

    `lost` are those that were reaped: what was charged of tokens and of input.
    """

    held: dict[str, Request] = field(default_factory=dict)
    rows: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    lost: dict[str, tuple[int, int]] = field(default_factory=dict)
    level: float = 0
    level_at_s: float = 0

    def used(self, day: int) -> int:
        return sum(tokens for row_day, tokens, _ in self.rows.values() if row_day == day)

    def spent(self, day: int) -> int:
        return sum(nano for row_day, _, nano in self.rows.values() if row_day == day)

    def holding(self, day: int) -> int:
        return sum(held.tokens for held in self.held.values() if held.day == day)

    def queued(self) -> int:
        return sum(held.prompt for held in self.held.values() if held.waits)

    def rate(self, now_s: float) -> float:
        return max(min(self.level, RATE) - (now_s - self.level_at_s) * RATE_S, 0)

    def fill(self, now_s: float, amount: int) -> None:
        self.level, self.level_at_s = self.rate(now_s) + amount, now_s

    def fits(self, now_s: float, prompt: int, output: int) -> bool:
        day = int(now_s) // DAY_S
        total = self.used(day) + self.holding(day) + prompt + output
        return (
            total <= min(KEY_CAP, TENANT_CAP)
            and len(self.held) < MAX_RUNNING
            and self.queued() + prompt <= MAX_QUEUED
            and self.rate(now_s) + prompt <= RATE
        )

    def reap(self, now_s: float) -> None:
        for id_, held in list(self.held.items()):
            if held.lease_s <= now_s:
                del self.held[id_]
                # What was told of it is input, and cost nothing.
                self.rows[id_] = (held.day, held.told, 0)
                self.lost[id_] = (held.told, held.told)
                self.level += held.told - held.prompt

    def end(self, id_: str, tokens: int, num_input: int, day: int) -> None:
        """Count what a request used, in place of what it held or was charged."""
        held = self.held.pop(id_, None)
        if held is not None:
            self.level += num_input - held.prompt
        else:
            _, charged = self.lost.pop(id_)
            self.level += num_input - charged
        self.rows[id_] = (day, tokens, tokens * NANO)


def limits_at(now_s: float) -> Limits:
    """Return every kind of limit, in three scopes."""
    return limits_of(
        now_s,
        key=Quota(daily_tokens=KEY_CAP),
        tenant=Quota(daily_tokens=TENANT_CAP, concurrency=MAX_RUNNING, queued_tokens=MAX_QUEUED),
        organisation=Quota(
            input_tpm=RATE, budget_nano_usd=BUDGET, budget_window=Window("day"), budget_hard=False
        ),
    )


class QuotaMachine(RuleBasedStateMachine):
    """Compare; subclasses say which Redis and which script."""

    redis: Redis
    script = SCRIPT

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        # Shortly before a midnight, so that histories cross it.
        self.counters = Counters(self.redis, self.script, now_s=BASE_S + 30 * DAY_S - 40)
        self.model = Model()
        self.number = 0

    @property
    def day(self) -> int:
        return int(self.counters.now_s) // DAY_S

    def limits(self) -> Limits:
        return limits_at(self.counters.now_s)

    def live(self, draw: int) -> str:
        return sorted(self.model.held)[draw % len(self.model.held)]

    def reap(self) -> None:
        """Have gateways look for what is overdue, as they do every few seconds."""
        self.counters.sweep()
        self.model.reap(self.counters.now_s)

    def ask(self, id_: str, prompt: int, output: int) -> Answer:
        return self.counters.reserve(
            self.limits(),
            id_,
            prompt=prompt,
            output=output,
            nano_usd=(prompt + output) * NANO,
            queued=prompt,
        )

    @rule(prompt=st.integers(1, 300), output=st.integers(1, 300))
    def reserve(self, prompt: int, output: int) -> None:
        """What fits is held, what does not changes nothing; asked again, the answer is the same."""
        self.number += 1
        id_ = f"r{self.number}"
        self.reap()
        now_s = self.counters.now_s
        fits = self.model.fits(now_s, prompt, output)
        answer = self.ask(id_, prompt, output)
        assert isinstance(answer, Held) == fits, answer
        if fits:
            self.model.held[id_] = Request(self.day, prompt + output, prompt, now_s + LEASE_S)
            self.model.fill(now_s, prompt)
            again = self.ask(id_, prompt, output)
            assert isinstance(again, Held)
            assert isinstance(answer, Held)
            assert again.at_us == answer.at_us

    @precondition(lambda self: self.model.held)
    @rule(draw=st.integers(0, 9), tokens=st.integers(1, 300))
    def extend(self, draw: int, tokens: int) -> None:
        """An extension gets what is left of its own day, and renews the lease."""
        id_ = self.live(draw)
        self.reap()
        [answer] = self.counters.run(Extend(id_, tokens, tokens * NANO, LEASE_US, ONE_TOKEN))
        held = self.model.held.get(id_)
        if held is None:
            assert answer == Gone()
            return
        taken = self.model.used(held.day) + self.model.holding(held.day)
        fits = max(min(tokens, min(KEY_CAP, TENANT_CAP) - taken), 0)
        assert answer == Extended(fits)
        held.tokens += fits
        held.told = 1
        held.lease_s = self.counters.now_s + LEASE_S

    @precondition(lambda self: self.model.held)
    @rule(draw=st.integers(0, 9))
    def begin(self, draw: int) -> None:
        """A prompt that has begun waits no longer, however often that is said."""
        id_ = self.live(draw)
        self.reap()
        for _ in range(2):
            self.counters.run(Begun(id_))
        if id_ in self.model.held:
            self.model.held[id_].waits = False

    @precondition(lambda self: self.model.held)
    @rule(draw=st.integers(0, 9), percent=st.integers(0, 100), cached=st.integers(0, 100))
    def settle_twice(self, draw: int, percent: int, cached: int) -> None:
        """What was used is counted once, whether or not the lease was in time; cached input costs
        no rate."""
        id_ = self.live(draw)
        held = self.model.held[id_]
        self.reap()
        tokens = held.tokens * percent // 100
        num_input = min(held.prompt, tokens) * (100 - cached) // 100
        self._settle(id_, Amounts(1, num_input, 0, 0, 0, tokens, tokens * NANO))
        self.model.end(id_, tokens, num_input, held.day)

    @precondition(lambda self: self.model.held)
    @rule(draw=st.integers(0, 9))
    def cancel(self, draw: int) -> None:
        """A request that was not taken in gives everything back."""
        id_ = self.live(draw)
        held = self.model.held[id_]
        self.reap()
        self._settle(id_, Amounts())
        self.model.end(id_, 0, 0, held.day)

    def _settle(self, id_: str, amounts: Amounts) -> None:
        for _ in range(2):
            self.counters.run(Settle(id_, amounts))
        # A late copy of the reservation, from a connection that was given up.
        assert self.ask(id_, 1, 1) == Settled()

    @precondition(lambda self: self.model.lost)
    @rule(more=st.integers(0, 50))
    def settle_late(self, more: int) -> None:
        """A journal that outlived its process replaces the estimate."""
        id_ = min(self.model.lost)
        tokens = self.model.lost[id_][0] + more
        for _ in range(2):
            self.counters.run(Settle(id_, Amounts(1, tokens, 0, 0, 0, tokens, tokens * NANO)))
        self.model.end(id_, tokens, tokens, self.model.rows[id_][0])

    @precondition(lambda self: self.model.held)
    @rule()
    def keep(self) -> None:
        """Renewed leases live on; what they were told is what they cost if they do not."""
        self.reap()
        told = [(id_, ONE_TOKEN) for id_ in sorted(self.model.held)]
        self.counters.run(Keep("g", LEASE_US, told))
        for held in self.model.held.values():
            held.told, held.lease_s = 1, self.counters.now_s + LEASE_S

    @precondition(lambda self: self.model.held)
    @rule()
    def abandon(self) -> None:
        """Every process dies, having told a little of what it did."""
        self.keep()
        self.advance(LEASE_S + 1)

    @rule(seconds=st.integers(1, 45))
    def advance(self, seconds: int) -> None:
        """Time passes, over leases and midnights."""
        self.counters.now_s += seconds
        self.reap()

    @rule()
    def flush(self) -> None:
        """A server that forgot everything is told again: the ledger's sums, and what is held."""
        self.reap()
        self.redis.flushall()
        self.redis.function_load(self.counters.library.source, replace=True)
        # What was reaped is in the ledger by now; nothing can correct it any more.
        self.model.lost.clear()
        self.model.level = 0
        self._load(self.limits(), self.day)
        for id_, held in self.model.held.items():
            day = limits_at(held.day * DAY_S)
            if held.day != self.day:
                self._load(day, held.day)
                for limit in day.limits:
                    if limit.slot is not None:
                        assert limit.slot.start_s == held.day * DAY_S
                        self.counters.run(Repair(limit, None, self._seen(limit, held.day)))
            held.told = 0
            held.lease_s = self.counters.now_s + LEASE_S
            queued = held.prompt if held.waits else 0
            amounts = Amounts(1, held.prompt, 0, 1, queued, held.tokens, held.tokens * NANO)
            for _ in range(2):
                self.counters.run(HoldAgain(id_, day, amounts, 0, "{}", LEASE_US))
            self.model.fill(self.counters.now_s, held.prompt)

    def _load(self, limits: Limits, day: int) -> None:
        seen = {(limit.scope, day * DAY_S): self._seen(limit, day) for limit in limits.limits}
        self.counters.load(limits, seen)

    def _seen(self, limit: Limit, day: int) -> int:
        is_money = limit.scope.kind is ScopeKind.ORGANISATION
        return self.model.spent(day) if is_money else self.model.used(day)

    @invariant()
    def agrees(self) -> None:
        """Held is the sum of what is live, used of what was settled, and both within the cap."""
        self.reap()
        model = self.model
        expected = {
            Metric.CONCURRENCY: (0, len(model.held)),
            Metric.QUEUED_TOKENS: (0, model.queued()),
            Metric.DAILY_TOKENS: (model.used(self.day), model.holding(self.day)),
            Metric.BUDGET: (model.spent(self.day), model.holding(self.day) * NANO),
            # Rounded up, as what is left is rounded down.
            Metric.INPUT_TPM: (math.ceil(min(model.rate(self.counters.now_s), RATE)), 0),
        }
        for row in self.counters.look(self.limits()):
            assert (row["used"], row["held"]) == expected[row["metric"]], row["metric"]
