"""Load windows that the counters have not counted from the ledger.

After counters were lost, every key, tenant, organisation and the platform are loaded by their next
request, and each of thousands may wait for the same. So a scope is loaded once however many wait
for it, and goes through a turnstile: of the connections of the ledger that all share, loads have
some, and the keys of one tenant fewer. The scopes that tenants share take turns of their own, as
one tenant's queue must not hold up what others wait for too.

A request that settled before a window was loaded may have its row in the ledger by then or not:
the counters list such, and are told which of them the sums hold.

All on the event loop's thread. A ledger that hangs fails each load after `load_s`, and whoever
waits for it; the next who asks begins a new one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol
from uuid import UUID

from gateway.domain.counters import Building, Load, Waiting
from gateway.domain.limits import LedgerSnapshot, Limit, Limits, Sums, Told
from gateway.domain.quota import Scope, ScopeKind
from gateway.errors import CountersUnavailable, StoreUnavailable
from gateway.services.one_flight import OneFlight
from gateway.services.quotas.link import CounterLink

# Who needs the ledger first is refused rather than kept waiting for a database that hangs.
LOAD_S: Final = 2.0
# Of the connections of the ledger (`gateway.store.pools`), the rest of which bill.
MAX_LOADS: Final = 4
MAX_LOADS_OF_PAYER: Final = 2
# Requests may settle while a window is loaded, a few times.
_MAX_ROUNDS: Final = 8
# Before the first second of a window no request of it has begun, by any rounding.
_SURELY_S: Final = 60.0
_OWN: Final = (ScopeKind.KEY, ScopeKind.TENANT)

Slotted = tuple[Scope, int, int]


class UsedBefore(Protocol):
    """Know from the ledger what scopes have used between two times, and who."""

    async def snapshot(
        self, wanted: Sequence[Slotted], ids: Collection[UUID], since_s: float
    ) -> LedgerSnapshot:
        """Return sums, what of them are lost requests, and rows of those begun since then."""
        ...


class Loads:
    """Tell the counters from the ledger what windows have seen."""

    def __init__(
        self,
        link: CounterLink,
        ledger: UsedBefore,
        *,
        flush_ledger: Callable[[], Awaitable[object]],
        load_s: float = LOAD_S,
    ) -> None:
        self._link = link
        self._ledger = ledger
        self._flush_ledger = flush_ledger
        self._load_s = load_s
        self._flights = OneFlight[tuple[Limit, ...], None]()
        self._turnstile = _Turnstile()

    async def load(self, limits: Limits, payer: UUID, scopes: Collection[Scope] = ()) -> None:
        """Load windows of `scopes`, or all: in turns of the tenant `payer`, or of who shares them.

        Raises: `CountersUnavailable`: the ledger does not answer, or they are not to be loaded yet.
        """
        by_scope: dict[Scope, list[Limit]] = {}
        for limit in limits.limits:
            if limit.slot is not None and (not scopes or limit.scope in scopes):
                by_scope.setdefault(limit.scope, []).append(limit)
        await asyncio.gather(
            *(
                self._shared(tuple(windows), payer if scope.kind in _OWN else scope.id)
                for scope, windows in by_scope.items()
            )
        )

    async def _shared(self, windows: tuple[Limit, ...], whose: UUID) -> None:
        await self._flights.ask(windows, lambda: self._in_time(windows, whose))

    async def _in_time(self, windows: Sequence[Limit], whose: UUID) -> None:
        try:
            async with asyncio.timeout(self._load_s), self._turnstile.through(whose):
                await self._load(windows)
        except CountersUnavailable:
            raise
        except (StoreUnavailable, TimeoutError) as exc:
            raise CountersUnavailable(detail=repr(exc), retry_after_s=1) from exc

    async def _load(self, windows: Sequence[Limit]) -> None:
        await self._flush_ledger()
        listed, since_us = [Waiting(())] * len(windows), 0
        for _ in range(_MAX_ROUNDS):
            loads = await self._read_ledger(windows, listed, since_us)
            answers = await self._link.ask(*loads)
            for index, answer in enumerate(answers):
                if isinstance(answer, Building):
                    raise CountersUnavailable(retry_after_s=wait_s(answer))
                listed[index] = answer if isinstance(answer, Waiting) else Waiting(())
            if not any(one.request_ids for one in listed):
                return
            since_us = since_us or max(one.at_us for one in listed)
        raise CountersUnavailable(detail="requests settle all the time", retry_after_s=1)

    async def _read_ledger(
        self, windows: Sequence[Limit], listed: Sequence[Waiting], since_us: int
    ) -> list[Load]:
        """Return what loads windows, each of which the ledger is to say listed requests of."""
        wanted = [part for limit in windows for part in _slotted(limit)]
        ids = {UUID(hex=id_) for one in listed for id_ in one.request_ids}
        since_s = min(start_s for _, start_s, _ in wanted) - _SURELY_S
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


class _Turnstile:
    """Let so many through at a time, and fewer of one payer: the others of it wait before all."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(MAX_LOADS)
        self._of_payer: dict[UUID, asyncio.Semaphore] = {}
        self._num_here: Counter[UUID] = Counter()

    @asynccontextmanager
    async def through(self, whose: UUID) -> AsyncIterator[None]:
        own = self._of_payer.setdefault(whose, asyncio.Semaphore(MAX_LOADS_OF_PAYER))
        self._num_here[whose] += 1
        try:
            async with own, self._places:
                yield
        finally:
            self._num_here[whose] -= 1
            if not self._num_here[whose]:
                del self._num_here[whose], self._of_payer[whose]


def wait_s(answer: Building) -> float:
    """Say when counters that build up are worth another try."""
    return max(answer.wait_s, 0.1)


def _slotted(limit: Limit) -> list[Slotted]:
    """Return the slots of a window, as the ledger is asked for them."""
    assert limit.slot is not None
    width_s = limit.slot.end_s - limit.slot.start_s
    return [(limit.scope, start_s, start_s + width_s) for start_s in limit.slots()]


def _sums(told: Told) -> Sums:
    """Return what a row adds to the ledger's sums."""
    return Sums(1, told.input_tokens + told.output_tokens, told.nano_usd)
