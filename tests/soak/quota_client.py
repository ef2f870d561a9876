"""A bare client of the quotas, forked again and again: `python -m tests.soak.quota_client SPEC`.

The process imports everything once, then forks a worker for each line on its input and answers with
the worker's pid. A worker reserves, extends and settles as a gateway does, without HTTP and without
an engine, until it is killed; with `sweep` on its line it only cleans up after the others.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import uvloop

from gateway.domain import Principal
from gateway.domain.quota import Quota, Scope, ScopeKind, ScopeQuota
from gateway.domain.tier import Tier
from gateway.domain.usage import Outcome
from gateway.errors import CountersUnavailable, GatewayError, TenantLimited
from gateway.services.ledger.spool import Spool
from gateway.services.ledger.writer import LedgerWriter
from gateway.services.quotas.keeper import QuotaKeeper
from gateway.services.quotas.lease import Books, Terms
from gateway.services.quotas.link import CounterLink
from gateway.services.quotas.recovery import Recovery
from gateway.services.quotas.service import QuotaService
from gateway.store.database import Database
from gateway.store.ledger import SqlLedger
from gateway.store.quota_counters import RedisQuotaCounters
from gateway.store.redis import connect_for_pipe
from gateway.store.redis_pipe import RedisPipe
from gateway.telemetry.metrics import Metrics

TASKS = 16


@dataclass(frozen=True)
class Spec:
    """Say which stores and whose quota."""

    database_url: str
    redis_url: str
    spool: str
    organisation_id: str
    tenant_id: str
    key_id: str
    cap: int


class NoPrices:
    def price(self, model: str) -> None:
        return None


class Drawing:
    """Stand for a generation: it draws what it was granted."""

    def __init__(self, granted: int, num_prompt_tokens: int) -> None:
        self.granted = granted
        self.num_used_tokens = 0
        self.num_cached_tokens = 0
        self._num_prompt_tokens = num_prompt_tokens
        self.ended = asyncio.Event()
        self.more = asyncio.Event()

    @property
    def num_prefilled_tokens(self) -> int:
        return self._num_prompt_tokens if self.num_used_tokens else 0

    def extend(self, granted_tokens: int) -> None:
        self.granted = granted_tokens
        self.more.set()

    def finish_granted(self) -> None:
        self.ended.set()
        self.more.set()

    def fail(self, error: GatewayError) -> None:
        self.finish_granted()


async def one(quotas: QuotaService, principal: Principal, draw: random.Random) -> None:
    """Hold, draw and end one request, in one of the ways that requests end."""
    max_tokens = draw.randrange(1, 600)
    terms = Terms(
        request_id=uuid4(),
        principal=principal,
        model="m",
        tier=Tier.DEFAULT,
        price=None,
        num_prompt_tokens=draw.randrange(1, 100),
        max_tokens=[max_tokens],
        leads=[True],
    )
    lease = await quotas.reserve(terms)
    drawing = Drawing(lease.granted[0], terms.num_prompt_tokens)
    lease.attach([drawing])
    stops_at = draw.randrange(0, max_tokens + 1)
    while drawing.num_used_tokens < stops_at and not lease.is_settled:
        if drawing.num_used_tokens == drawing.granted:
            if drawing.ended.is_set():
                break
            drawing.more.clear()
            lease.note_output(0, drawing.num_used_tokens, False)
            await drawing.more.wait()
            continue
        drawing.num_used_tokens += min(32, drawing.granted - drawing.num_used_tokens)
        lease.note_output(0, drawing.num_used_tokens, False)
        await asyncio.sleep(0.001)
    lease.settle(Outcome.COMPLETED)


async def work(spec: Spec, *, only_sweeps: bool) -> None:
    """Count until killed."""
    principal = _principal(spec)
    metrics = Metrics()
    draw = random.Random(os.getpid())
    async with AsyncExitStack() as stack:
        database = Database(spec.database_url)
        pipe = RedisPipe(connect_for_pipe(spec.redis_url), timeout_s=1.0)
        link = CounterLink(RedisQuotaCounters(pipe), time, metrics, build_s=0)
        ledger = SqlLedger(database)
        spool = Spool(Path(spec.spool))
        recovery = Recovery(spool.append, link)
        for row in spool.unledgered():
            recovery.settle(row)
        writer = LedgerWriter(ledger, spool, on_written=recovery.written)

        async def flush() -> None:
            await writer.flush(0.5)

        quotas = QuotaService(
            link,
            ledger,
            NoPrices(),
            Books(append=recovery.append, note=lambda *told: None),
            metrics,
            flush_ledger=flush,
        )
        await stack.enter_async_context(writer.running())
        await stack.enter_async_context(QuotaKeeper(quotas, ledger, metrics).running())
        if only_sweeps:
            await asyncio.Event().wait()
        await asyncio.gather(*(_again_and_again(quotas, principal, draw) for _ in range(TASKS)))


async def _again_and_again(quotas: QuotaService, principal: Principal, draw: random.Random) -> None:
    while True:
        try:
            await one(quotas, principal, draw)
        except (TenantLimited, CountersUnavailable):
            await asyncio.sleep(0.01)


def _principal(spec: Spec) -> Principal:
    tenant_id = UUID(spec.tenant_id)
    quota = ScopeQuota(Scope(ScopeKind.TENANT, tenant_id), Quota(daily_tokens=spec.cap))
    return Principal(
        organisation_id=UUID(spec.organisation_id),
        tenant_id=tenant_id,
        tenant="acme",
        weight=1.0,
        key_id=UUID(spec.key_id),
        kid="k",
        quotas=(quota,),
    )


def main() -> None:
    spec = Spec(**json.loads(sys.argv[1]))
    # Nobody waits for the dead.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            uvloop.run(work(spec, only_sweeps=line.strip() == "sweep"))
            os._exit(0)
        print(pid, flush=True)


def spec_json(**fields: Any) -> str:
    """Spell a spec for the command line."""
    return json.dumps(fields)


if __name__ == "__main__":
    main()
