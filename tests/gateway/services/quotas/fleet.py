"""Gateways of one store, as far as limits go: real counters and a real ledger, no engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

from gateway.domain import Principal, Tier
from gateway.domain.limits import LedgerSnapshot
from gateway.domain.quota import Quota, Scope, ScopeKind
from gateway.domain.quota_settings import QuotaHolder
from gateway.domain.usage import Outcome, UsageRow
from gateway.ports import LedgerStore, QuotaCounters
from gateway.services.ledger import LedgerWriter, Spool
from gateway.services.quotas.lease import Books, RequestLease, Terms
from gateway.services.quotas.link import LEASE_S, CounterLink
from gateway.services.quotas.loads import LOAD_S, Slotted
from gateway.services.quotas.recovery import Recovery
from gateway.services.quotas.service import QuotaService
from gateway.store import Store
from gateway.telemetry.metrics import Metrics
from tests.gateway.admin_app import ACTOR
from tests.gateway.services.quotas.scripted import FakeRun, NoPrices

PROMPT: Final = 10


class Tenant:
    """The first start's tenant: its limits, its key and its bills."""

    def __init__(self, store: Store) -> None:
        assert store.first_start is not None
        self.store = store
        self.kid = store.first_start.keys[0].key.kid

    async def set(self, **limits: int) -> None:
        """Set its limits, all of them."""
        principal = await self.principal()
        scope = Scope(ScopeKind.TENANT, principal.tenant_id)
        holder = QuotaHolder(
            scope, principal.tenant, principal.organisation_id, principal.tenant_id
        )
        await self.store.quota_settings.put(ACTOR, holder, Quota(**limits))

    async def principal(self) -> Principal:
        """Return whom its key speaks for, with the limits that hold now."""
        record = await self.store.keys.find(self.kid)
        assert record is not None
        return record.principal

    async def billed(self) -> int:
        """Return the tokens of its bills."""
        scope = Scope(ScopeKind.TENANT, (await self.principal()).tenant_id)
        hour = int(time.time()) // 3600 * 3600
        [sums] = await self.store.ledger.used([(scope, hour - 86_400, hour + 3600)])
        return sums.tokens


class Gateway:
    """Reserve, extend, settle and bill as a process does."""

    def __init__(
        self,
        tenant: Tenant,
        counters: QuotaCounters,
        spool: Spool,
        *,
        lease_s: float = LEASE_S,
        load_s: float = LOAD_S,
    ) -> None:
        self.tenant = tenant
        self.spool = spool
        self.metrics = Metrics()
        self.link = CounterLink(counters, time, self.metrics, build_s=0, lease_s=lease_s)
        self.recovery = Recovery(spool.append, self.link)
        # Cleared: the ledger is away for what is journalled here.
        self.ledger_answers = asyncio.Event()
        self.ledger_answers.set()
        # Cleared: what limits have seen cannot be read.
        self.ledger_is_read = asyncio.Event()
        self.ledger_is_read.set()
        ledger = _Gated(tenant.store.ledger, self.ledger_answers, self.ledger_is_read)
        self.writer = LedgerWriter(ledger, spool, on_written=self.recovery.written)
        books = Books(append=self.recovery.append, note=lambda *told: None)
        self.quotas = QuotaService(
            self.link,
            ledger,
            NoPrices(),
            books,
            self.metrics,
            flush_ledger=self._flush,
            load_s=load_s,
        )

    async def begin(
        self, max_tokens: int, principal: Principal | None = None
    ) -> tuple[RequestLease, FakeRun]:
        """Begin a request; with a `principal`, under the limits that it brings."""
        terms = Terms(
            request_id=uuid4(),
            principal=principal or await self.tenant.principal(),
            model="demo",
            tier=Tier.DEFAULT,
            price=None,
            num_prompt_tokens=PROMPT,
            max_tokens=[max_tokens],
            leads=[True],
        )
        lease, run = await self.quotas.reserve(terms), FakeRun(1, prefilled=PROMPT)
        lease.attach([run])
        return lease, run

    async def serve(self, max_tokens: int) -> int:
        """Begin a request and generate all that it is granted; return how many tokens it used."""
        lease, run = await self.begin(max_tokens)
        await self.generate(lease, run)
        lease.settle(Outcome.COMPLETED)
        return PROMPT + run.num_used_tokens

    async def generate(self, lease: RequestLease, run: FakeRun) -> None:
        """Draw what is granted until there is no more."""
        while True:
            run.num_used_tokens = lease.granted[0]
            is_last = lease.granted[0] == lease.terms.max_tokens[0] or bool(lease.stop_causes)
            lease.note_output(0, run.num_used_tokens, is_last)
            if is_last:
                return
            while lease.granted[0] == run.num_used_tokens and not lease.stop_causes:
                # At once where it is granted, be that before whoever asked has heard.
                await asyncio.sleep(0)

    def remind(self) -> None:
        """Tell counters that forgot everything what waits for the ledger."""
        self.recovery.settle_again(self.spool.unledgered())

    async def told(self) -> None:
        """Have counters and ledger know all that ended here."""
        await self.link.flush()
        assert await self.writer.flush(10)

    async def _flush(self) -> None:
        await self.writer.flush(0.5)


class _Gated:
    """Take rows while an event is set, and tell of them while another is."""

    def __init__(self, ledger: LedgerStore, answers: asyncio.Event, is_read: asyncio.Event) -> None:
        self._ledger = ledger
        self._answers = answers
        self._is_read = is_read

    async def insert(self, rows: Sequence[UsageRow]) -> int:
        await self._answers.wait()
        return await self._ledger.insert(rows)

    async def snapshot(
        self, wanted: Sequence[Slotted], ids: Collection[UUID], since_s: float
    ) -> LedgerSnapshot:
        await self._is_read.wait()
        return await self._ledger.snapshot(wanted, ids, since_s)


@asynccontextmanager
async def gateway(
    tenant: Tenant,
    directory: Path,
    counters: QuotaCounters | None = None,
    *,
    lease_s: float = LEASE_S,
    load_s: float = LOAD_S,
) -> AsyncIterator[Gateway]:
    """Run a gateway's journal; with counters of its own, if it is to lose sight of them."""
    spool = Spool(directory)
    opened = Gateway(
        tenant, counters or tenant.store.counters, spool, lease_s=lease_s, load_s=load_s
    )
    async with opened.writer.running():
        yield opened
        await opened.link.close()
    spool.close()
