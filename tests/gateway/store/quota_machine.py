"""A pure model of the counters, and random histories that hold the real ones against it.

The model is forty lines of dictionaries: what is held by whom, what was used, what a dead process
had been told. A history reserves, extends, settles twice, loses processes, moves the clock over
leases and midnights, flushes the server and comes back from the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from redis import Redis

from gateway.domain.counters import (
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
from gateway.domain.limits import BASE_S, Amounts, Told
from gateway.domain.quota import Quota
from gateway.store.quota_counters import SCRIPT
from tests.gateway.store.quota_harness import LEASE_S, Counters, limits_of, used

KEY_CAP, TENANT_CAP, MAX_RUNNING = 600, 1000, 4
DAY_S = 86_400


@dataclass
class Request:
    """One request as the model has it; `told` is what its process last said of its use."""

    day: int
    tokens: int
    prompt: int
    lease_s: float
    told: int = 0


@dataclass
class Model:
    """Say what the counters ought to hold; `rows` are the ledger: request → (day, tokens)."""

    held: dict[str, Request] = field(default_factory=dict)
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)

    def used(self, day: int) -> int:
        return sum(tokens for row_day, tokens in self.rows.values() if row_day == day)

    def holding(self, day: int) -> int:
        return sum(held.tokens for held in self.held.values() if held.day == day)

    def fits(self, day: int, tokens: int) -> bool:
        total = self.used(day) + self.holding(day) + tokens
        return total <= min(KEY_CAP, TENANT_CAP) and len(self.held) < MAX_RUNNING

    def reap(self, now_s: float) -> None:
        for id_, held in list(self.held.items()):
            if held.lease_s <= now_s:
                del self.held[id_]
                self.rows[id_] = (held.day, held.told)
                self.lost[id_] = held.told


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

    def limits(self):  # type: ignore[no-untyped-def]
        return limits_of(
            self.counters.now_s,
            key=Quota(daily_tokens=KEY_CAP),
            tenant=Quota(daily_tokens=TENANT_CAP, concurrency=MAX_RUNNING),
        )

    def live(self, draw: int) -> str:
        return sorted(self.model.held)[draw % len(self.model.held)]

    def reap(self) -> None:
        """Have gateways look for what is overdue, as they do every few seconds."""
        self.counters.sweep()
        self.model.reap(self.counters.now_s)

    @rule(prompt=st.integers(1, 300), output=st.integers(1, 300))
    def reserve(self, prompt: int, output: int) -> None:
        """What fits is held, what does not changes nothing; asked again, the answer is the same."""
        self.number += 1
        id_ = f"r{self.number}"
        self.reap()
        fits = self.model.fits(self.day, prompt + output)
        answer = self.counters.reserve(self.limits(), id_, prompt=prompt, output=output)
        assert isinstance(answer, Held) == fits, answer
        if fits:
            lease_s = self.counters.now_s + LEASE_S
            self.model.held[id_] = Request(self.day, prompt + output, prompt, lease_s)
            again = self.counters.reserve(self.limits(), id_, prompt=prompt, output=output)
            assert isinstance(again, Held)
            assert isinstance(answer, Held)
            assert again.at_us == answer.at_us

    @precondition(lambda self: self.model.held)
    @rule(draw=st.integers(0, 9), tokens=st.integers(1, 300))
    def extend(self, draw: int, tokens: int) -> None:
        """An extension gets what is left of its own day, and renews the lease."""
        id_ = self.live(draw)
        self.reap()
        op = Extend(id_, tokens, 0, LEASE_S * 1_000_000, Told(1))
        [answer] = self.counters.run(op)
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
    @rule(draw=st.integers(0, 9), percent=st.integers(0, 100))
    def settle_twice(self, draw: int, percent: int) -> None:
        """What was used is counted once, whether or not the lease was in time."""
        id_ = self.live(draw)
        held = self.model.held[id_]
        self.reap()
        tokens = held.tokens * percent // 100
        for _ in range(2):
            self.counters.run(Settle(id_, used(output=tokens)))
        # A late copy of the reservation, from a connection that was given up.
        late = self.counters.reserve(self.limits(), id_, prompt=1, output=1)
        assert late == Settled()
        self.model.held.pop(id_, None)
        self.model.lost.pop(id_, None)
        self.model.rows[id_] = (held.day, tokens)

    @precondition(lambda self: self.model.lost)
    @rule(more=st.integers(0, 50))
    def settle_late(self, more: int) -> None:
        """A journal that outlived its process replaces the estimate."""
        id_ = min(self.model.lost)
        tokens = self.model.lost.pop(id_) + more
        self.counters.run(Settle(id_, used(output=tokens)))
        self.counters.run(Settle(id_, used(output=tokens)))
        self.model.rows[id_] = (self.model.rows[id_][0], tokens)

    @precondition(lambda self: self.model.held)
    @rule()
    def keep(self) -> None:
        """Renewed leases live on; what they were told is what they cost if they do not."""
        self.reap()
        told = [(id_, Told(1)) for id_ in sorted(self.model.held)]
        self.counters.run(Keep("g", LEASE_S * 1_000_000, told))
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
        self.redis.flushall()
        self.redis.function_load(self.counters.library.source, replace=True)
        # What was reaped is in the ledger by now; nothing can correct it any more.
        self.model.lost.clear()
        limits = self.limits()
        self.counters.load(
            limits,
            {(limit.scope, self.day * DAY_S): self.model.used(self.day) for limit in limits.limits},
        )
        for id_, held in self.model.held.items():
            day = limits_of(
                held.day * DAY_S,
                key=Quota(daily_tokens=KEY_CAP),
                tenant=Quota(daily_tokens=TENANT_CAP, concurrency=MAX_RUNNING),
            )
            if held.day != self.day:
                before = self.model.used(held.day)
                start = held.day * DAY_S
                self.counters.load(day, {(limit.scope, start): before for limit in day.limits})
                for limit in day.limits:
                    if limit.slot is not None:
                        assert limit.slot.start_s == start
                        self.counters.run(Repair(limit, None, before))
            held.told = 0
            held.lease_s = self.counters.now_s + LEASE_S
            amounts = Amounts(1, held.prompt, 0, 1, 0, held.tokens, 0)
            op = HoldAgain(id_, day, amounts, 0, "{}", LEASE_S * 1_000_000)
            for _ in range(2):
                self.counters.run(op)

    @invariant()
    def agrees(self) -> None:
        """Held is the sum of what is live, used of what was settled, and both within the cap."""
        self.reap()
        for row in self.counters.look(self.limits()):
            if row["metric"].value == "concurrency":
                assert row["held"] == len(self.model.held)
                continue
            assert row["held"] == self.model.holding(self.day)
            assert row["used"] == self.model.used(self.day)
