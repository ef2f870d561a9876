"""One request's hold on its limits, from the reservation to the bill.

The lease belongs to the request, not to whoever reads its answer: `settle` is one synchronous
call, so no cancellation can come between its parts, and a second one does nothing. It writes the
row of the ledger first (that survives a `kill -9`), then posts what was used to the counters.

While the request runs it asks for more output tokens before the granted ones are used up. What is
granted last is all there is: the generation ends with `length` there; `stop_causes` says why.
Where the counters do not answer, rates are extended by this process alone; a request under a hard
quota waits at its grant until they do, and ends there before its lease does.

A lease that could not be renewed in time (the process was frozen, or cut off) was reaped: others
may have got what it held. Under a hard quota no more is billed then than what the counters had been
told of, which is what they charged: the rest of the answer is nobody's, as the quota is to hold. A
process that is cut off from the counters alone can do better: in time before that it vouches in the
ledger for all that was granted, where whoever reaps looks first. Then all that is used is billed.

An item of a batch is billed with its result or not at all: nobody is told of its use before its
end, so whoever finds it abandoned bills nothing, and one that ends without a result is let go.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

from gateway.domain import Principal
from gateway.domain.batch import ItemResult
from gateway.domain.counters import (
    Answer,
    Begun,
    Done,
    Extend,
    Extended,
    Gone,
    HoldAgain,
    Nothing,
    Settle,
    Unknown,
    WindowUse,
)
from gateway.domain.limits import BASE_S, Amounts, Limits, Told
from gateway.domain.price import Price
from gateway.domain.quota import Standing
from gateway.domain.tier import Tier
from gateway.domain.timeline import Detail, Phase, Timeline
from gateway.domain.usage import ItemRow, Outcome, UsageRow
from gateway.errors import CountersUnavailable, GatewayError
from gateway.services.quotas.bill import Meta, bill
from gateway.services.quotas.link import LEASE_S, CounterLink
from gateway.services.quotas.local_limits import LocalLimits
from gateway.telemetry import names

logger = logging.getLogger(__name__)

LEASE_US: Final = int(LEASE_S * 1_000_000)
# Asked for this many tokens before the grant is used up.
AHEAD: Final = 128
CHUNK: Final = 256
# After this long without an answer, others may soon take what is held here for abandoned.
_GIVE_UP_S: Final = LEASE_S - 8.0
# From here on it may have been reaped, however long the last renewal was on its way.
_OVERDUE_S: Final = LEASE_S - 2.0
# Unheard for so long, a process vouches for it: renewals failed, and there is time before that.
_VOUCH_S: Final = LEASE_S - 14.0
RETRY_S: Final = 0.5


class Granted(Protocol):
    """Run on what it was granted: one generation of a request."""

    @property
    def num_used_tokens(self) -> int: ...
    @property
    def num_prefilled_tokens(self) -> int: ...
    @property
    def num_cached_tokens(self) -> int: ...
    def extend(self, granted_tokens: int) -> None: ...
    def finish_granted(self) -> None: ...
    def fail(self, error: GatewayError) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Say what a request is, as far as its bill goes. `max_tokens` are of its generations.

    `leads` says for each generation whether its prompt counts: that of a further choice of the
    same prompt does not. `is_counted`: it was counted as a request already. `is_batch`: it is an
    item of a batch, which is priced as such and meets no rates. `timeline` is told what happens.
    """

    request_id: UUID
    principal: Principal
    model: str
    tier: Tier
    price: Price | None
    num_prompt_tokens: int
    max_tokens: Sequence[int]
    leads: Sequence[bool]
    is_counted: bool = False
    is_batch: bool = False
    timeline: Timeline | None = field(default=None, compare=False, repr=False)

    def nano_usd(self, told: tuple[int, int, int]) -> int:
        """Price input, cached and output tokens."""
        if self.price is None:
            return 0
        return self.price.nano_usd(
            self.tier,
            input_tokens=told[0],
            cached_tokens=told[1],
            output_tokens=told[2],
            is_batch=self.is_batch,
        )

    def full_nano_usd(self, told: Told) -> int:
        """Price the same as a request of the default tier, which saves nothing."""
        if self.price is None:
            return 0
        return self.price.nano_usd(
            Tier.DEFAULT,
            input_tokens=told.input_tokens,
            cached_tokens=told.cached_tokens,
            output_tokens=told.output_tokens,
        )

    def most_nano_usd(self, num_output: int) -> int:
        """Price its prompts, cached if that is dearer, and so many output tokens."""
        price, num_cached = self.price, 0
        if price is not None and price.cached_nano_per_mtok > price.input_nano_per_mtok:
            num_cached = self.num_prompt_tokens
        return self.nano_usd((self.num_prompt_tokens, num_cached, num_output))

    def told(self, num_input: int, num_cached: int, num_output: int) -> Told:
        """Return what so many tokens come to; without a price cached ones count for no rate."""
        rate_tokens = num_input - num_cached
        if self.price is not None:
            rate_tokens += self.price.weigh_cached(num_cached)
        nano_usd = self.nano_usd((num_input, num_cached, num_output))
        return Told(num_input, num_cached, num_output, nano_usd, rate_tokens)

    def meta(self) -> Meta:
        """Return what the bill says beside numbers."""
        principal = self.principal
        return Meta(
            principal.organisation_id,
            principal.tenant_id,
            principal.key_id,
            self.model,
            self.tier,
            self.price.id if self.price else None,
            self.is_batch,
        )


@dataclass(frozen=True, slots=True)
class Books:
    """Hold where leases write: the journal of usage, and who is told of windows that fill up.

    `note` gets the tenant, and windows as the counters list them: from `noted_percent` of their
    limit on.
    """

    append: Callable[[UsageRow], None]
    note: Callable[[UUID, Sequence[WindowUse]], None]
    noted_percent: int = 100


class RequestLease:
    """Hold amounts for one request; see the module. All on the event loop's thread."""

    def __init__(
        self,
        terms: Terms,
        limits: Limits,
        held: Amounts,
        granted: list[int],
        *,
        at_us: int,
        standing: Standing | None,
        link: CounterLink,
        local: LocalLimits,
        books: Books,
        is_local: bool,
        load: Callable[[Limits, UUID], Awaitable[None]],
        on_end: Callable[[RequestLease], None],
        retry_s: float = RETRY_S,
    ) -> None:
        self.terms = terms
        self.limits = limits
        self.held = held
        self.granted = granted
        self.at_us = at_us
        self.standing = standing
        self.is_local = is_local
        # generation → what ended it short of its own bounds
        self.stop_causes: dict[int, str] = {}
        self.is_settled = False
        self.is_lost = False
        self.told_s = link.now_s()
        self._told = Told()
        self._vouched: Told | None = None
        self._link = link
        self._local = local
        self._books = books
        self._load = load
        self._on_end = on_end
        self._retry_s = retry_s
        self._running: Sequence[Granted] = ()
        # The same by prompt: its choices.
        self._prompts: list[list[Granted]] = []
        self._extending: dict[int, asyncio.Task[None]] = {}
        self._is_queued = held.queued_tokens > 0
        self._first_s: float | None = None

    def attach(self, running: Sequence[Granted]) -> None:
        """Learn what runs on this lease, in the order of `terms.max_tokens`."""
        assert len(running) == len(self.granted)
        self._running = running
        for generation, leads in zip(running, self.terms.leads, strict=True):
            if leads:
                self._prompts.append([])
            self._prompts[-1].append(generation)

    def note_output(self, index: int, num_output_tokens: int, is_last: bool) -> None:
        """Learn how far a generation is; ask for more where its grant is nearly used up."""
        if self._first_s is None:
            self._first_s = self._link.now_s()
        timeline = self.terms.timeline
        if timeline is not None and num_output_tokens:
            timeline.last_token_s = now_s = time.monotonic()
            if timeline.first_token_s is None:
                timeline.first_token_s = now_s
        if is_last:
            return
        if self._is_queued:
            # Not with the last of it: settling tells as much.
            self._is_queued = False
            self._post_begun()
        granted = self.granted[index]
        if granted < self.terms.max_tokens[index] and granted - num_output_tokens <= AHEAD:
            self._extend(index)

    def told(self) -> Told:
        """Say what is to be billed if nothing more is heard of this: of a batch's item nothing."""
        return Told() if self.terms.is_batch else self.used()

    def used(self) -> Told:
        """Say what has been used so far.

        A prompt that is being computed tells nothing before its first token, or its end.
        """
        num_input = num_cached = 0
        for choices in self._prompts:
            num_prefilled, num_found = _of_prompt(choices)
            num_input += num_prefilled
            num_cached += num_found
        num_output = sum(running.num_used_tokens for running in self._running)
        return self.terms.told(num_input, num_cached, num_output)

    def was_told(self, told: Told, at_s: float) -> None:
        """Learn what the counters know of its use, and since when."""
        self.told_s, self._told = at_s, told

    def refund(self) -> None:
        """Let everything go: the request was not taken in."""
        self._end(Amounts())

    def settle(self, outcome: Outcome, item: ItemResult | None = None) -> None:
        """Bill what was used and let the rest go; the first call counts.

        What the engine failed is not billed, nor what a batch's item used without a result. The
        result goes with the bill.
        """
        if self.is_settled:
            return
        assert item is None or self.terms.is_batch, "only items of batches have results"
        if self.terms.is_batch and item is None:
            self.refund()
            return
        told = Told() if outcome is Outcome.FAILED else self._billed()
        row = self._row(told, outcome)
        began_s = time.monotonic()
        if item is None:
            self._books.append(row)
        else:
            self._books.append(ItemRow.of(row, item, self.terms.full_nano_usd(told)))
        self._tell(row, began_s)
        # What was counted before the reservation is not counted again.
        self._end(used_amounts(told)._replace(requests=self.held.requests))

    def _tell(self, row: UsageRow, began_s: float) -> None:
        timeline = self.terms.timeline
        if timeline is None:
            return
        timeline.during(Phase(names.LEDGER, began_s, time.monotonic()))
        timeline.outcome = row.outcome.value
        timeline.input_tokens, timeline.cached_tokens = row.input_tokens, row.cached_tokens
        timeline.output_tokens, timeline.nano_usd = row.output_tokens, row.nano_usd

    def fail(self, error: GatewayError) -> None:
        """End what runs on this lease with an error."""
        for running in self._running:
            running.fail(error)

    def lose(self) -> None:
        """Let what runs end where its grant does: the counters have let go what is held."""
        self.is_lost = True
        for index in range(len(self._running)):
            self._stop(index, "lease_lost")

    def lose_forgotten(self) -> None:
        """Let it end: the counters have forgotten it, charged nothing, and given it to others."""
        self._told = Told()
        self.lose()

    def again(self) -> HoldAgain:
        """Return the operation that holds the same once more, after the counters forgot it."""
        terms = self.terms
        meta = terms.meta().packed()
        return HoldAgain(terms.request_id.hex, self.limits, self.held, self.at_us, meta, LEASE_US)

    @property
    def wants_vouching(self) -> bool:
        """Tell whether it is unheard for so long that its process should vouch for it."""
        return (
            self.limits.has_hard
            and not self.terms.is_batch
            and not (self.is_local or self.is_lost or self.is_settled)
            and self._vouched is None
            and _VOUCH_S < self._link.now_s() - self.told_s <= _OVERDUE_S
        )

    def voucher(self) -> UsageRow:
        """Return the bill for all that it was granted; its true one replaces that."""
        num_prompt, num_output = self.terms.num_prompt_tokens, sum(self.granted)
        granted = self.terms.told(num_prompt, 0, num_output)
        return bill(self.terms.request_id, self.at_us, self.terms.meta(), granted, Outcome.LOST)

    def was_vouched(self, row: UsageRow) -> None:
        """Learn that such a bill is in the ledger, if that was in time."""
        if self._link.now_s() - self.told_s <= _OVERDUE_S:
            self._vouched = Told(row.input_tokens, 0, row.output_tokens, row.nano_usd)

    def _is_covered(self, told: Told) -> bool:
        """Tell whether others left alone what it has used."""
        vouched = self._vouched
        if vouched is not None and told.output_tokens <= vouched.output_tokens:
            return True
        return not self.is_lost and self._link.now_s() - self.told_s <= _OVERDUE_S

    @property
    def is_covered(self) -> bool:
        """Tell whether all that was used can be billed without passing a limit."""
        return self._can_bill(self.used())

    def _can_bill(self, told: Told) -> bool:
        return self.is_local or not self.limits.has_hard or self._is_covered(told)

    def _billed(self) -> Told:
        told = self.used()
        if self._can_bill(told):
            return told
        logger.warning(
            "request %s outlived its lease: %d tokens are billed, %d were used",
            self.terms.request_id.hex,
            self._told.input_tokens + self._told.output_tokens,
            told.input_tokens + told.output_tokens,
        )
        return self._told

    def _end(self, used: Amounts) -> None:
        if self.is_settled:
            return
        self.is_settled = True
        for task in self._extending.values():
            task.cancel()
        if self.is_local:
            self._local.release(self.limits, self.held, used, self._link.now_s())
        else:
            op = Settle(self.terms.request_id.hex, used, self.limits, self._books.noted_percent)
            self._link.post(op, lambda answer: self._settled(answer, used))
        self._on_end(self)

    def _settled(self, answer: Answer, used: Amounts) -> None:
        if isinstance(answer, Done) and answer.windows:
            self._books.note(self.terms.principal.tenant_id, answer.windows)
        if isinstance(answer, Nothing) and any(used):
            # They have forgotten it: its windows may be loaded, with its bill or without.
            meta = self.terms.meta().packed()
            op = Settle(self.terms.request_id.hex, used, self.limits, at_us=self.at_us, meta=meta)
            self._link.post(op)

    def _row(self, told: Told, outcome: Outcome) -> UsageRow:
        at_s = self.at_us / 1_000_000 + BASE_S
        return bill(
            self.terms.request_id,
            self.at_us,
            self.terms.meta(),
            told,
            outcome,
            took_s=max(self._link.now_s() - at_s, 0.0),
            ttft_s=None if self._first_s is None else max(self._first_s - at_s, 0.0),
        )

    def _post_begun(self) -> None:
        if not self.is_local:
            self.held = self.held._replace(queued_tokens=0)
            self._link.post(Begun(self.terms.request_id.hex))

    def _extend(self, index: int) -> None:
        stopped = self.is_settled or index in self.stop_causes
        under_way = self._extending.get(index)
        # One that is done may not have been told of yet, and what it has brought be used up.
        if not stopped and (under_way is None or under_way.done()):
            task = asyncio.create_task(self._ask_for_more(index))
            self._extending[index] = task
            task.add_done_callback(lambda done: self._extended(index, done))

    def _extended(self, index: int, task: asyncio.Task[None]) -> None:
        if self._extending.get(index) is task:
            del self._extending[index]
        if not task.cancelled() and task.exception() is not None:
            logger.error("a grant could not be extended", exc_info=task.exception())
            self._stop(index, "quota")

    async def _ask_for_more(self, index: int) -> None:
        want = min(CHUNK, self.terms.max_tokens[index] - self.granted[index])
        fits = await self._more(index, want)
        if fits < 1:
            self._stop(index, "quota")
            return
        nano_usd = -(-self.terms.nano_usd((0, 0, want)) * fits // want)
        self.held = self.held._replace(
            output_tokens=self.held.output_tokens + fits,
            tokens=self.held.tokens + fits,
            nano_usd=self.held.nano_usd + nano_usd,
        )
        self.granted[index] += fits
        self._remark(names.EXTENDED, {names.CHOICE: index, names.GRANTED_TOKENS: fits})
        self._running[index].extend(self.granted[index])

    async def _more(self, index: int, want: int) -> int:
        """Have up to `want` more tokens granted to a generation; return how many.

        Asked again while there is hope: no `Background`, as it ends with its request.
        """
        if self.is_local:
            return self._local.extend(self.limits, want, self._link.now_s())
        nano_usd = self.terms.nano_usd((0, 0, want))
        request_id, granted = self.terms.request_id.hex, self.granted[index]
        give_up_s = self._link.now_s() + _GIVE_UP_S
        while True:
            told, told_s = self.told(), self._link.now_s()
            op = Extend(request_id, want, nano_usd, LEASE_US, told, index, granted)
            try:
                answer = await self._link.join(op)
                if not isinstance(answer, Gone):
                    self.was_told(told, told_s)
                if isinstance(answer, Extended):
                    return answer.tokens
                if isinstance(answer, Unknown):
                    # It may count in a window that was set later, which its limits do not name:
                    # whoever begins next loads that.
                    await self._load(self.limits, self.terms.principal.tenant_id)
            except CountersUnavailable:
                if not self.limits.has_hard:
                    return self._local.extend(self.limits, want, self._link.now_s())
                if self._link.silent_s() > _GIVE_UP_S:
                    return 0
            # Counters that forgot everything do not count yet, or do not know this request, which
            # is held again shortly. One that was reaped is ended by whoever finds that.
            if self.stop_causes or self._link.now_s() > give_up_s:
                return 0
            await asyncio.sleep(self._retry_s)

    def _stop(self, index: int, cause: str) -> None:
        if index not in self.stop_causes:
            self.stop_causes[index] = cause
            self._remark(names.STOPPED, {names.CHOICE: index, names.CAUSE: cause})
        if self._running and not self.is_settled:
            self._running[index].finish_granted()

    def _remark(self, name: str, detail: Detail) -> None:
        if self.terms.timeline is not None:
            self.terms.timeline.remark(name, time.monotonic(), detail)


def _of_prompt(choices: Sequence[Granted]) -> tuple[int, int]:
    """Return how much of a prompt its choices have, and what of that was found in the cache.

    As much as the furthest has; found is what the first of them to begin has found, as the others
    find what that one has computed, and what none of them has computed.
    """
    num_prefilled = num_computed = num_found = 0
    for running in choices:
        num_had = running.num_prefilled_tokens
        # A fault may have taken what was found.
        num_cached = min(running.num_cached_tokens, num_had)
        if not num_prefilled:
            num_found = num_cached
        num_prefilled = max(num_prefilled, num_had)
        num_computed += num_had - num_cached
    return num_prefilled, max(num_found, num_prefilled - num_computed)


def used_amounts(told: Told) -> Amounts:
    """Return what limits count of a finished request."""
    if not told.input_tokens and not told.output_tokens:
        return Amounts(requests=1)
    return Amounts(
        requests=1,
        input_tokens=told.rate_tokens,
        output_tokens=told.output_tokens,
        tokens=told.input_tokens + told.output_tokens,
        nano_usd=told.nano_usd,
    )
