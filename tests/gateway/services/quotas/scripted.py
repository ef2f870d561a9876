"""Fakes under the service of quotas: counters that answer and fail as told, a ledger, a clock."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID, uuid4

from gateway.domain import Principal, Tier
from gateway.domain.counters import (
    Answer,
    CounterReply,
    Done,
    Extend,
    Extended,
    Found,
    Held,
    Keep,
    Kept,
    Look,
    Op,
    Reserve,
    Sweep,
    Swept,
)
from gateway.domain.limits import BASE_S, NO_LIMITS, LedgerSnapshot, Sums, Told
from gateway.domain.price import Price
from gateway.domain.quota import Quota, Scope, ScopeKind, ScopeQuota
from gateway.domain.usage import Outcome, UsageRow
from gateway.errors import CountersUnavailable, GatewayError
from gateway.services.quotas.lease import Books, RequestLease, Terms
from gateway.services.quotas.link import CounterLink
from gateway.services.quotas.loads import LOAD_S, Slotted
from gateway.services.quotas.service import QuotaService
from gateway.telemetry.metrics import Metrics

# A day's noon, so that no window ends while a test runs.
OpT = TypeVar("OpT", bound=Op)
LOOK = Look(NO_LIMITS)
NOON_S = BASE_S + 30 * 86_400 + 43_200
BUILD_S = 3.0
_TENANT = Scope(ScopeKind.TENANT, UUID(int=2))


class Clock:
    """Stand still until told."""

    def __init__(self) -> None:
        self.now_s = NOON_S + 0.0

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s


class ScriptedCounters:
    """Answer operations by `answers`, fail the next `num_failures` calls, note every call.

    Without an `epoch` they are empty until somebody founds them. Calls wait for the `gate`. While
    they are not `is_connected` a call has to be waited for.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calls: list[list[Op]] = []
        self.epoch: str | None = "first"
        self.num_failures = 0
        self.is_connected = True
        self.gate = asyncio.Event()
        self.gate.set()
        self.answers: dict[type[Op], Callable[[Any], Answer]] = {
            Reserve: lambda op: Held(self.now_us),
            Extend: lambda op: Extended(op.tokens),
            Keep: lambda op: Kept(1, {}),
            Sweep: lambda op: Swept(0, 0, []),
        }

    @property
    def now_us(self) -> int:
        return int((self.clock.now_s - BASE_S) * 1_000_000)

    async def run(self, ops: Sequence[Op]) -> CounterReply:
        return await self._reply(ops, fails=self._note(ops))

    def begin(
        self, ops: Sequence[Op], on_reply: Callable[[CounterReply | Exception], None]
    ) -> bool:
        if not self.is_connected:
            return False
        reply = asyncio.ensure_future(self._reply(ops, fails=self._note(ops)))
        reply.add_done_callback(lambda reply: on_reply(reply.exception() or reply.result()))
        return True

    def _note(self, ops: Sequence[Op]) -> bool:
        """Note a call, and tell whether it is to fail."""
        self.calls.append(list(ops))
        fails = self.num_failures > 0
        self.num_failures -= fails
        return fails

    async def _reply(self, ops: Sequence[Op], *, fails: bool) -> CounterReply:
        await self.gate.wait()
        if fails:
            raise CountersUnavailable(detail="as told")
        if ops and isinstance(ops[0], Found):
            self.epoch = self.epoch or f"founded-{len(self.calls)}"
            return CounterReply(self.epoch, self.now_us + ops[0].build_us, self.now_us, [])
        if self.epoch is None:
            return CounterReply(None, 0, self.now_us, [])
        answers = [self.answers.get(type(op), lambda op: Done())(op) for op in ops]
        return CounterReply(self.epoch, 0, self.now_us, answers)

    def forget(self) -> None:
        """Lose everything, as a server does that was emptied."""
        self.epoch = None

    def asked(self, kind: type[OpT]) -> list[OpT]:
        """Return the operations of a kind, in the order they came."""
        return [op for call in self.calls for op in call if isinstance(op, kind)]


class FakeLedger:
    """Sum what it is told, and hold rows once each; it hangs while `gate` is closed."""

    def __init__(self) -> None:
        self.sums: dict[Scope, Sums] = defaultdict(Sums)
        self.rows: dict[UUID, UsageRow] = {}
        self.failures: list[GatewayError] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def used(self, wanted: Sequence[Slotted]) -> Sequence[Sums]:
        await self._answer()
        return [self.sums[scope] for scope, _, _ in wanted]

    async def booked(self, ids: Collection[UUID], since_s: float) -> Mapping[UUID, Told]:
        await self._answer()
        return {id_: _told(self.rows[id_]) for id_ in ids if id_ in self.rows}

    async def snapshot(
        self, wanted: Sequence[Slotted], ids: Collection[UUID], since_s: float
    ) -> LedgerSnapshot:
        used, booked = await self.used(wanted), await self.booked(ids, since_s)
        lost = {
            row.request_id: Sums(1, row.input_tokens + row.output_tokens, row.nano_usd)
            for row in self.rows.values()
            if row.outcome is Outcome.LOST
        }
        return LedgerSnapshot(used, [lost for _ in wanted], booked)

    async def insert(self, rows: Sequence[UsageRow]) -> int:
        await self._answer()
        new = {row.request_id: row for row in rows if row.request_id not in self.rows}
        self.rows |= new
        return len(new)

    async def _answer(self) -> None:
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)


def _told(row: UsageRow) -> Told:
    return Told(row.input_tokens, row.cached_tokens, row.output_tokens, row.nano_usd)


class NoPrices:
    def price(self, model: str) -> Price | None:
        return None


class FakeRun:
    """Stand for a generation: what it has used is set, what is done to it is noted."""

    def __init__(self, used: int = 0, *, prefilled: int = 0, cached: int = 0) -> None:
        self.num_used_tokens = used
        self.num_prefilled_tokens = prefilled
        self.num_cached_tokens = cached
        self.granted: list[int] = []
        self.num_finished = 0

    def extend(self, granted_tokens: int) -> None:
        self.granted.append(granted_tokens)

    def finish_granted(self) -> None:
        self.num_finished += 1

    def fail(self, error: GatewayError) -> None:
        raise NotImplementedError


class Rig:
    """Hold a service of quotas with all that it stands on; what waits for others waits briefly."""

    def __init__(self, ledger: FakeLedger | None = None, *, load_s: float = LOAD_S) -> None:
        self.clock = Clock()
        self.counters = ScriptedCounters(self.clock)
        self.ledger = ledger or FakeLedger()
        self.metrics = Metrics()
        self.bills: list[UsageRow] = []
        self.link = CounterLink(self.counters, self.clock, self.metrics, build_s=BUILD_S)
        self.quotas = QuotaService(
            self.link,
            self.ledger,
            NoPrices(),
            Books(append=self.bills.append, note=lambda *told: None),
            self.metrics,
            flush_ledger=self._flush,
            load_s=load_s,
            retry_s=0.005,
        )

    async def hold(self, quota: Quota | None = None, *, used: int = 1) -> tuple[RequestLease, Any]:
        """Reserve for a request that may draw 1,000 tokens and has drawn `used`."""
        lease = await self.quotas.reserve(terms(quota or Quota(rpm=1000)))
        run = FakeRun(used, prefilled=lease.terms.num_prompt_tokens if used else 0)
        lease.attach([run])
        return lease, run

    async def open_breaker(self) -> None:
        """Fail until the counters are taken for gone."""
        self.counters.num_failures = 5
        while not self.link.is_open:
            with contextlib.suppress(CountersUnavailable):
                await self.link.ask(LOOK)

    def metric(self, name: str) -> float:
        value = self.metrics.registry.get_sample_value(name)
        assert value is not None, name
        return value

    async def _flush(self) -> None:
        return


def terms(
    quota: Quota,
    *,
    num_prompt_tokens: int = 10,
    max_tokens: int = 1000,
    price: Price | None = None,
    leads: Sequence[bool] = (True,),
) -> Terms:
    """Say what a request of the one tenant is, who has these limits now."""
    return Terms(
        request_id=uuid4(),
        principal=Principal(
            organisation_id=UUID(int=1),
            tenant_id=_TENANT.id,
            tenant="acme",
            weight=1.0,
            key_id=UUID(int=3),
            kid="kid",
            quotas=(ScopeQuota(_TENANT, quota),),
        ),
        model="demo",
        tier=Tier.DEFAULT,
        price=price,
        num_prompt_tokens=num_prompt_tokens,
        max_tokens=[max_tokens] * len(leads),
        leads=leads,
    )


async def until(condition: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
    """Give other tasks turns until a condition holds. Raises: `TimeoutError`."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError
        await asyncio.sleep(0.002)
