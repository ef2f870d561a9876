"""Reserve, extend, settle: the limits of every request, held before it computes anything.

`reserve` asks the shared counters once for all limits of key, tenant, organisation and platform.
It holds the whole prompt, which is known exactly, and the first tokens of the answer; the lease
asks for the rest as it is generated. So what is held always covers what is used, and no limit is
passed, however a process ends.

A window that the counters have not counted yet (a new limit, a new machine) is loaded from the
ledger first. Where the counters do not answer, see `local_limits`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, Protocol
from uuid import UUID, uuid4

from gateway.domain import Principal
from gateway.domain.batch import ItemResult
from gateway.domain.counters import (
    Answer,
    Building,
    Held,
    Load,
    Reserve,
    Settle,
    Stale,
    Unknown,
    Waiting,
)
from gateway.domain.limits import BASE_S, Amounts, Denied, LedgerSnapshot, Limit, Limits, Sums, Told
from gateway.domain.price import Price
from gateway.domain.quota import Metric, Scope, ScopeQuota, Standing
from gateway.domain.usage import ItemRow, Outcome
from gateway.errors import CountersUnavailable, InternalFailure, StoreUnavailable, TenantLimited
from gateway.services.quotas.ask import Ask, first_grant
from gateway.services.quotas.bill import Meta, bill
from gateway.services.quotas.compile import Compiler, compile_limits
from gateway.services.quotas.lease import CHUNK, LEASE_US, RETRY_S, Books, RequestLease, Terms
from gateway.services.quotas.link import CounterLink
from gateway.services.quotas.local_limits import LocalLimits
from gateway.services.quotas.refusals import refusal
from gateway.telemetry.metrics import Metrics

# A window that ends, limits that are loaded: each may change what is to be asked, a few times.
_MAX_ROUNDS: Final = 8
# Who needs the ledger first is refused rather than kept waiting for a database that hangs.
LOAD_S: Final = 2.0
# Before the first second of a window no request of it has begun, by any rounding.
_SURELY_S: Final = 60.0
_ONE_REQUEST: Final = Amounts(requests=1)

Slotted = tuple[Scope, int, int]


class Prices(Protocol):
    """Know what models cost."""

    def price(self, model: str) -> Price | None: ...


class UsedBefore(Protocol):
    """Know from the ledger what scopes have used between two times, and who."""

    async def snapshot(
        self, wanted: Sequence[Slotted], ids: Collection[UUID], since_s: float
    ) -> LedgerSnapshot:
        """Return sums, what of them are lost requests, and rows of those begun since then."""
        ...


class QuotaService:
    """Hold requests to their limits. All on the event loop's thread."""

    def __init__(
        self,
        link: CounterLink,
        ledger: UsedBefore,
        prices: Prices,
        books: Books,
        metrics: Metrics,
        *,
        flush_ledger: Callable[[], Awaitable[object]],
        chunk: int = CHUNK,
        load_s: float = LOAD_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self.link = link
        self.compiler = Compiler()
        self.local = LocalLimits()
        self._ledger = ledger
        self._prices = prices
        self._books = books
        self._metrics = metrics
        self._flush_ledger = flush_ledger
        self._chunk = chunk
        self._load_s = load_s
        self._retry_s = retry_s
        self._live: dict[str, RequestLease] = {}

    @property
    def live(self) -> Iterable[RequestLease]:
        """Return the leases that are held here."""
        return list(self._live.values())

    def price(self, model: str) -> Price | None:
        """Return what a model costs now."""
        return self._prices.price(model)

    async def reserve(self, terms: Terms) -> RequestLease:
        """Hold what a request needs to begin; its lease must be settled or refunded.

        Raises: `TenantLimited`, `QuotaExhausted`: a limit refuses it; `CountersUnavailable`: a hard
        quota cannot be checked.
        """
        ask = self._first_ask(terms)
        for _ in range(_MAX_ROUNDS):
            if self.link.is_open:
                return self._reserve_locally(ask)
            try:
                [answer] = await self.link.ask(ask.op())
            except asyncio.CancelledError:
                # It may have been held: nobody is left to use it.
                self._take_back(terms)
                raise
            except CountersUnavailable:
                # The same, only that nobody knows.
                self._take_back(terms)
                return self._reserve_locally(ask)
            if isinstance(answer, Held):
                return self._lease(ask, at_us=answer.at_us, standing=answer.standing)
            if isinstance(answer, Denied):
                smaller = ask.smaller(answer)
                if smaller is None:
                    raise self._denied(answer, terms.principal)
                ask = smaller
            elif isinstance(answer, Unknown):
                await self._load_or_refuse(ask.limits)
            elif isinstance(answer, Stale):
                ask = self._first_ask(terms)
            elif isinstance(answer, Building):
                raise _still_building(answer)
            else:
                raise InternalFailure(detail=f"a request id was used twice: {answer}")
        raise InternalFailure(detail="the counters never came to an answer")

    def note_unbilled(self, request_id: UUID, meta: Meta, item: ItemResult) -> None:
        """Have a result of a batch's item stored that has used nothing."""
        at_us = int((self.link.now_s() - BASE_S) * 1_000_000)
        row = bill(request_id, at_us, meta, Told(), Outcome.FAILED)
        self._books.append(ItemRow.of(row, item))

    async def count_request(self, principal: Principal) -> None:
        """Count one request before anything of it is read; its reservation does not count it then.

        Raises: `TenantLimited`: a limit on requests refuses it; `CountersUnavailable`.
        """
        limits = self._of_requests(principal)
        if not limits.limits:
            return
        answer = await self._count(limits)
        if isinstance(answer, Denied):
            raise self._denied(answer, principal)

    def count_later(self, principal: Principal) -> None:
        """Count one request that has been refused already, where its rate has room for it."""
        limits = self._of_requests(principal)
        if not limits.limits:
            return
        if self.link.is_open:
            self.local.reserve(limits, _ONE_REQUEST, self.link.now_s())
            return
        for op in _one_request(limits):
            self.link.post(op)

    async def _count(self, limits: Limits) -> Answer | None:
        # Nothing is posted to counters that are known to be away: it would wait there, as much of
        # it as anybody likes to send.
        if self.link.is_open:
            return self.local.reserve(limits, _ONE_REQUEST, self.link.now_s())
        hold, let_go = _one_request(limits)
        try:
            [answer] = await self.link.ask(hold)
        except CountersUnavailable:
            return self.local.reserve(limits, _ONE_REQUEST, self.link.now_s())
        finally:
            self.link.post(let_go)
        return answer

    def _of_requests(self, principal: Principal) -> Limits:
        return compile_limits(principal.quotas, self.link.now_s(), (Metric.RPM,))

    async def load(self, limits: Limits) -> None:
        """Tell the counters from the ledger what windows have seen.

        A request that settled before a window was loaded may have its row in the ledger by then or
        not: the counters list such, and are told which of them the sums hold.
        Raises: `StoreUnavailable`; `CountersUnavailable`: they are not to be loaded yet.
        """
        await self._flush_ledger()
        windows = [limit for limit in limits.limits if limit.slot is not None]
        listed, since_us = [Waiting(())] * len(windows), 0
        for _ in range(_MAX_ROUNDS):
            loads = await self._read_ledger(windows, listed, since_us)
            answers = await self.link.ask(*loads) if loads else []
            for index, answer in enumerate(answers):
                if isinstance(answer, Building):
                    raise _still_building(answer)
                listed[index] = answer if isinstance(answer, Waiting) else Waiting(())
            if not any(one.request_ids for one in listed):
                return
            since_us = since_us or max(one.at_us for one in listed)
        raise CountersUnavailable(detail="requests settle all the time", retry_after_s=1)

    async def limits_changed(self, scope: ScopeQuota) -> None:
        """Have what runs counted in a scope's limits as they are now.

        Where the stores do not answer, the scope's next request does it.
        """
        limits = compile_limits((scope,), self.link.now_s())
        if any(limit.slot is not None for limit in limits.limits):
            with contextlib.suppress(CountersUnavailable):
                await self._load_or_refuse(limits)

    async def _read_ledger(
        self, windows: Sequence[Limit], listed: Sequence[Waiting], since_us: int
    ) -> list[Load]:
        """Return what loads windows, each of which the ledger is to say listed requests of."""
        wanted = [part for limit in windows for part in _slotted(limit)]
        ids = {UUID(hex=id_) for one in listed for id_ in one.request_ids}
        since_s = min((start_s for _, start_s, _ in wanted), default=0) - _SURELY_S
        seen = await self._ledger.snapshot(wanted, ids, since_s)
        used = dict(zip(wanted, seen.used, strict=True))
        lost = dict(zip(wanted, seen.vouched, strict=True))
        loads = []
        for limit, one in zip(windows, listed, strict=True):
            metric, parts = limit.metric, _slotted(limit)
            vouched = {
                id_.hex: (part[1], sums.of(metric))
                for part in parts
                for id_, sums in lost[part].items()
            }
            booked = [
                (id_, _sums(seen.booked[UUID(hex=id_)]).of(metric))
                for id_ in one.request_ids
                # What the sums have as lost is known by that: its own bill is yet to come.
                if UUID(hex=id_) in seen.booked and id_ not in vouched
            ]
            apart = [(id_, *what) for id_, what in vouched.items()]
            sums = [used[part].of(metric) for part in parts]
            loads.append(Load(limit, sums, one.request_ids, booked, apart, since_us))
        return loads

    async def _load_or_refuse(self, limits: Limits) -> None:
        try:
            async with asyncio.timeout(self._load_s):
                await self.load(limits)
        except CountersUnavailable:
            raise
        except (StoreUnavailable, TimeoutError) as exc:
            raise CountersUnavailable(detail=repr(exc), retry_after_s=1) from exc

    def _first_ask(self, terms: Terms) -> Ask:
        principal, now_s = terms.principal, self.link.now_s()
        limits = self.compiler.compile(principal, now_s, is_batch=terms.is_batch)
        if terms.is_batch:
            return Ask(terms, limits, list(terms.max_tokens))
        return Ask(terms, limits, first_grant(limits, terms.max_tokens, self._chunk))

    def _take_back(self, terms: Terms) -> None:
        self.link.post(Settle(terms.request_id.hex, Amounts()))

    def _reserve_locally(self, ask: Ask) -> RequestLease:
        now_s = self.link.now_s()
        denied = self.local.reserve(ask.limits, ask.held, now_s)
        if denied is not None:
            raise self._denied(denied, ask.terms.principal)
        return self._lease(ask, at_us=int((now_s - BASE_S) * 1_000_000), is_local=True)

    def _lease(
        self,
        ask: Ask,
        *,
        at_us: int,
        standing: Standing | None = None,
        is_local: bool = False,
    ) -> RequestLease:
        lease = RequestLease(
            ask.terms,
            ask.limits,
            ask.held,
            list(ask.granted),
            at_us=at_us,
            standing=standing,
            link=self.link,
            local=self.local,
            books=self._books,
            is_local=is_local,
            load=self._load_or_refuse,
            on_end=self._forget,
            retry_s=self._retry_s,
        )
        self._live[ask.terms.request_id.hex] = lease
        return lease

    def _forget(self, lease: RequestLease) -> None:
        self._live.pop(lease.terms.request_id.hex, None)

    def _denied(self, denied: Denied, principal: Principal) -> TenantLimited:
        limit = denied.limit
        self._metrics.quota_denied.labels(limit.metric.value, limit.scope.kind.value).inc()
        return refusal(denied, principal, self.link.now_s())


def _one_request(limits: Limits) -> tuple[Reserve, Settle]:
    """Return what holds one request, and what lets go of all but its place in the rate."""
    id_ = uuid4().hex
    return Reserve(id_, limits, _ONE_REQUEST, "", LEASE_US), Settle(id_, _ONE_REQUEST)


def _still_building(answer: Building) -> CountersUnavailable:
    return CountersUnavailable(retry_after_s=max(answer.wait_s, 0.1))


def _slotted(limit: Limit) -> list[Slotted]:
    """Return the slots of a window, as the ledger is asked for them."""
    assert limit.slot is not None
    width_s = limit.slot.end_s - limit.slot.start_s
    return [(limit.scope, start_s, start_s + width_s) for start_s in limit.slots()]


def _sums(told: Told) -> Sums:
    """Return what a row adds to the ledger's sums."""
    return Sums(1, told.input_tokens + told.output_tokens, told.nano_usd)
