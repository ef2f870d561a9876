"""Many who wait for windows to be loaded from one ledger."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from gateway.domain.counters import Load
from gateway.domain.limits import LedgerSnapshot, Limits
from gateway.domain.quota import PLATFORM, Quota, Scope, ScopeKind, ScopeQuota
from gateway.domain.usage import Outcome
from gateway.errors import CountersUnavailable, StoreUnavailable
from gateway.services.quotas.compile import compile_limits
from gateway.services.quotas.loads import MAX_LOADS, MAX_LOADS_OF_PAYER, Loads, Slotted
from gateway.services.quotas.usage import limit_uses
from gateway.store import Store
from tests.gateway.services.quotas.fleet import Tenant, gateway
from tests.gateway.services.quotas.scripted import FakeLedger, Rig, until
from tests.gateway.usage_rows import usage_row

pytestmark = pytest.mark.anyio

HARD = Quota(daily_tokens=1000)
ACME, GLOBEX = UUID(int=1), UUID(int=2)


class Watched(FakeLedger):
    """Note who is read at a time, and how many at most."""

    def __init__(self) -> None:
        super().__init__()
        self.reading: Counter[Scope] = Counter()
        self.most = 0

    async def snapshot(
        self, wanted: Sequence[Slotted], ids: Collection[UUID], since_s: float
    ) -> LedgerSnapshot:
        scopes = {scope for scope, _, _ in wanted}
        self.reading.update(scopes)
        self.most = max(self.most, self.reading.total())
        try:
            return await super().snapshot(wanted, ids, since_s)
        finally:
            self.reading.subtract(scopes)


class Desk:
    """Load what keys need; each scope has a window of a day."""

    def __init__(self, load_s: float = 10.0) -> None:
        self.ledger = Watched()
        self.rig = Rig(self.ledger)
        self.loads = Loads(self.rig.link, self.ledger, flush_ledger=_flushed, load_s=load_s)

    def begin(self, payer: UUID, *scopes: Scope) -> asyncio.Task[None]:
        return asyncio.create_task(self.loads.load(self.limits(*scopes), payer))

    def limits(self, *scopes: Scope) -> Limits:
        quotas = [ScopeQuota(scope, HARD) for scope in scopes]
        return compile_limits(quotas, self.rig.clock.now_s)

    def loaded(self) -> Counter[Scope]:
        return Counter(load.limit.scope for load in self.rig.counters.asked(Load))


async def _flushed() -> None:
    return


@pytest.fixture
async def desk() -> Desk:
    """Build a desk inside the test's loop."""
    return Desk()


def key(number: int) -> Scope:
    return Scope(ScopeKind.KEY, UUID(int=1000 + number))


def tenant_scope(id_: UUID) -> Scope:
    return Scope(ScopeKind.TENANT, id_)


async def test_a_scope_is_loaded_once_for_all_who_wait(desk: Desk) -> None:
    """A hundred requests of ten keys read the tenant, and the platform, once."""
    waiting = [desk.begin(ACME, key(n % 10), tenant_scope(ACME), PLATFORM) for n in range(100)]
    await asyncio.gather(*waiting)
    assert desk.loaded() == dict.fromkeys([*map(key, range(10)), tenant_scope(ACME), PLATFORM], 1)


async def test_keys_of_one_tenant_leave_connections_to_others(desk: Desk) -> None:
    """With five hundred keys waiting on a slow ledger, another's key and the platform are read."""
    desk.ledger.gate.clear()
    flood = [desk.begin(ACME, key(n), PLATFORM) for n in range(500)]
    other = desk.begin(GLOBEX, key(900), tenant_scope(GLOBEX), PLATFORM)
    await until(lambda: desk.ledger.reading[key(900)] == 1)
    assert desk.ledger.reading[PLATFORM] == 1
    assert sum(desk.ledger.reading[key(n)] for n in range(500)) == MAX_LOADS_OF_PAYER
    desk.ledger.gate.set()
    await other
    assert sum(one.done() for one in flood) < 10
    await asyncio.gather(*flood)
    assert desk.ledger.most <= MAX_LOADS


async def test_many_tenants_leave_connections_to_who_bills(desk: Desk) -> None:
    """No more than four loads are read at a time, whosever they are."""
    desk.ledger.gate.clear()
    flood = [desk.begin(UUID(int=n), tenant_scope(UUID(int=n))) for n in range(100)]
    await until(lambda: desk.ledger.reading.total() == MAX_LOADS)
    desk.ledger.gate.set()
    await asyncio.gather(*flood)
    assert desk.ledger.most == MAX_LOADS


async def test_only_what_was_named_is_loaded(desk: Desk) -> None:
    """What the counters have is not read again."""
    await desk.loads.load(desk.limits(key(1), tenant_scope(ACME), PLATFORM), ACME, [key(1)])
    assert desk.loaded() == {key(1): 1}


async def test_one_that_hangs_refuses_all_who_wait_and_the_next_reads_anew() -> None:
    """A read has its time; who comes after it does not wait for a dead connection."""
    desk = Desk(load_s=0.05)
    desk.ledger.gate.clear()
    waiting = [desk.begin(ACME, tenant_scope(ACME)) for _ in range(3)]
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in answers] == [CountersUnavailable] * 3
    desk.ledger.gate.set()
    await desk.begin(ACME, tenant_scope(ACME))
    assert desk.loaded() == {tenant_scope(ACME): 1}


async def test_who_leaves_takes_the_read_from_nobody(desk: Desk) -> None:
    """The first to ask is cancelled; the second is answered by the same read."""
    desk.ledger.gate.clear()
    first, second = (desk.begin(ACME, tenant_scope(ACME)) for _ in range(2))
    await until(lambda: desk.ledger.reading[tenant_scope(ACME)] == 1)
    first.cancel()
    desk.ledger.gate.set()
    await second
    assert desk.loaded() == {tenant_scope(ACME): 1}


async def test_a_ledger_that_is_away_refuses_with_a_time(desk: Desk) -> None:
    """As counters that are not there do."""
    desk.ledger.failures.append(StoreUnavailable(detail="as told"))
    with pytest.raises(CountersUnavailable) as caught:
        await desk.begin(ACME, tenant_scope(ACME))
    assert caught.value.retry_after_s == 1


async def test_a_late_bill_and_a_ledger_away_refuse_who_shares_a_hard_limit(
    store: Store, tmp_path: Path
) -> None:
    """Whose windows it is in wait for the ledger, which may have it or not; nobody else does."""
    tenant = Tenant(store)
    await tenant.set(daily_tokens=100_000)
    async with gateway(tenant, tmp_path, load_s=0.3) as one:
        principal = await tenant.principal()
        [own] = principal.quotas
        shared = ScopeQuota(PLATFORM, Quota(daily_tokens=100_000))
        under = replace(principal, tenant_id=GLOBEX, key_id=GLOBEX, quotas=(shared,))
        apart = replace(under, quotas=(ScopeQuota(tenant_scope(GLOBEX), Quota(daily_tokens=99)),))
        for who in (principal, under, apart):
            lease, _ = await one.begin(10, who)
            lease.settle(Outcome.COMPLETED)
        await one.told()
        late = usage_row(
            organisation_id=principal.organisation_id,
            tenant_id=principal.tenant_id,
            key_id=principal.key_id,
            at=datetime.now(UTC),
        )
        one.recovery.written([late])
        await one.link.flush()
        one.ledger_is_read.clear()
        for who in (principal, under):
            with pytest.raises(CountersUnavailable) as caught:
                await one.begin(10, who)
            assert caught.value.retry_after_s == 1
        lease, _ = await one.begin(10, apart)
        lease.settle(Outcome.COMPLETED)
        await store.ledger.insert([late])
        one.ledger_is_read.set()
        for who, scope in ((principal, own), (under, shared)):
            lease, _ = await one.begin(10, who)
            lease.settle(Outcome.COMPLETED)
            await one.told()
            [use] = await limit_uses(one.quotas, scope)
            [sums] = await store.ledger.used([(scope.scope, *day(use.resets_at_s))])
            assert (use.used, use.held) == (sums.tokens, 0)


def day(ends_s: float | None) -> tuple[int, int]:
    """Return the day of a window that ends then."""
    assert ends_s is not None
    return int(ends_s) - 86_400, int(ends_s)
