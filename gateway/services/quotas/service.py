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
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol
from uuid import UUID, uuid4

from gateway.domain import Principal
from gateway.domain.batch import ItemResult
from gateway.domain.counters import (
    Answer,
    Building,
    Held,
    Reserve,
    Settle,
    Stale,
    Unknown,
)
from gateway.domain.limits import BASE_S, Amounts, Denied, Limits, Told
from gateway.domain.price import Price
from gateway.domain.quota import Metric, ScopeQuota, Standing
from gateway.domain.usage import ItemRow, Outcome
from gateway.errors import CountersUnavailable, InternalFailure, TenantLimited
from gateway.services.quotas.ask import Ask, first_grant
from gateway.services.quotas.bill import Meta, bill
from gateway.services.quotas.compile import Compiler, compile_limits
from gateway.services.quotas.lease import CHUNK, LEASE_US, RETRY_S, Books, RequestLease, Terms
from gateway.services.quotas.link import CounterLink
from gateway.services.quotas.loads import LOAD_S, Loads, UsedBefore, wait_s
from gateway.services.quotas.local_limits import LocalLimits
from gateway.services.quotas.refusals import refusal
from gateway.telemetry.metrics import Metrics

# A window that ends, limits that are loaded: each may change what is to be asked, a few times.
_MAX_ROUNDS: Final = 8
_ONE_REQUEST: Final = Amounts(requests=1)


class Prices(Protocol):
    """Know what models cost."""

    def price(self, model: str) -> Price | None: ...


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
        self._loads = Loads(link, ledger, flush_ledger=flush_ledger, load_s=load_s)
        self._prices = prices
        self._books = books
        self._metrics = metrics
        self._chunk = chunk
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
                answer = await self.link.join(ask.op())
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
                    raise self._denied(answer, terms.principal, ask)
                ask = smaller
            elif isinstance(answer, Unknown):
                await self._loads.load(ask.limits, terms.principal.tenant_id, answer.scopes)
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

    async def load(self, scope: ScopeQuota, tenant_id: UUID | None = None) -> None:
        """Have the windows of a scope counted that are not, in turns of the tenant that it is of.

        Raises: `CountersUnavailable`.
        """
        limits = compile_limits((scope,), self.link.now_s())
        await self._loads.load(limits, tenant_id or scope.scope.id)

    async def limits_changed(self, scope: ScopeQuota, tenant_id: UUID | None = None) -> None:
        """Have what runs counted in a scope's limits as they are now.

        Where the stores do not answer, the scope's next request does it.
        """
        with contextlib.suppress(CountersUnavailable):
            await self.load(scope, tenant_id)

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
            raise self._denied(denied, ask.terms.principal, ask)
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
            load=self._loads.load,
            on_end=self._forget,
            retry_s=self._retry_s,
        )
        self._live[ask.terms.request_id.hex] = lease
        return lease

    def _forget(self, lease: RequestLease) -> None:
        self._live.pop(lease.terms.request_id.hex, None)

    def _denied(
        self, denied: Denied, principal: Principal, ask: Ask | None = None
    ) -> TenantLimited:
        limit, held = denied.limit, None
        self._metrics.quota_denied.labels(limit.metric.value, limit.scope.kind.value).inc()
        if ask is not None and ask.terms.is_batch:
            held = ask.amount_of(limit)
        return refusal(denied, principal, self.link.now_s(), held=held)


def _one_request(limits: Limits) -> tuple[Reserve, Settle]:
    """Return what holds one request, and what lets go of all but its place in the rate."""
    id_ = uuid4().hex
    return Reserve(id_, limits, _ONE_REQUEST, "", LEASE_US), Settle(id_, _ONE_REQUEST)


def _still_building(answer: Building) -> CountersUnavailable:
    return CountersUnavailable(retry_after_s=wait_s(answer))
