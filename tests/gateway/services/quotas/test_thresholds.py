"""Thresholds on a real PostgreSQL."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select

from gateway.domain.quota import Metric, Scope, ScopeKind
from gateway.domain.quota_event import QuotaEvent
from gateway.errors import StoreUnavailable
from gateway.services.quotas.thresholds import Thresholds
from gateway.store import Store
from gateway.store.quota_events import SqlQuotaEvents
from gateway.store.tables import quota_events

pytestmark = pytest.mark.anyio

JANUARY, FEBRUARY = 1_767_225_600, 1_769_904_000


class Window:
    """Tell thresholds of one tenant's budget."""

    def __init__(self, store: Store, **options: Any) -> None:
        assert store.first_start is not None
        self.tenant_id: UUID = store.first_start.keys[0].key.tenant_id
        self.scope = Scope(ScopeKind.TENANT, self.tenant_id)
        self.raised: list[QuotaEvent] = []
        self.thresholds = Thresholds(
            options.pop("sql", store.quota_events),
            options.pop("percents", (100, 50, 80)),
            on_raised=self.raised.append,
            **options,
        )

    def use(self, used: int, amount: int = 1000, start_s: int = JANUARY) -> None:
        self.thresholds.note(self.scope, self.tenant_id, Metric.BUDGET, start_s, used, amount)

    async def percents(self) -> Sequence[int]:
        await self.thresholds.write()
        return [event.percent for event in self.raised]


async def test_each_percent_is_raised_once_a_window(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Events come as use grows, several at once if it jumps, and anew in the next window."""
    window = Window(store)
    with caplog.at_level(logging.WARNING):
        for used in (0, 499):
            window.use(used)
        assert await window.percents() == []
        for used in (500, 650, 500):
            window.use(used)
        assert await window.percents() == [50]
        window.use(1200)
        window.use(1300)
        assert await window.percents() == [50, 80, 100]
        window.use(790, start_s=FEBRUARY)
        assert await window.percents() == [50, 80, 100, 50]
    assert caplog.messages[0] == (
        f"tenant:{window.tenant_id} has used 50 % of its budget_nano_usd: 500 of 1000"
    )
    assert len(caplog.messages) == 4
    event = window.raised[0]
    assert (event.used, event.amount, event.window_start.isoformat()) == (
        500,
        1000,
        "2026-01-01T00:00:00+00:00",
    )


async def test_gateways_raise_it_together_once(store: Store) -> None:
    """Two processes that see the same window pass raise one event between them."""
    one, other = Window(store), Window(store)
    for window in (one, other):
        window.use(900)
    assert await one.percents() == [50, 80]
    assert await other.percents() == []
    other.use(1000)
    assert await other.percents() == [100]


async def test_scopes_and_metrics_are_apart(store: Store) -> None:
    """Each limit of each scope has its own thresholds; those above tenants have no tenant."""
    window = Window(store, percents=(50,))
    window.use(600)
    platform = Scope(ScopeKind.PLATFORM, UUID(int=0))
    note = window.thresholds.note
    note(platform, None, Metric.BUDGET, JANUARY, 600, 1000)
    note(window.scope, window.tenant_id, Metric.DAILY_TOKENS, JANUARY, 600, 1000)
    note(window.scope, window.tenant_id, Metric.DAILY_TOKENS, JANUARY, 5, 0)
    await window.thresholds.write()
    assert [(event.scope.kind, event.metric) for event in window.raised] == [
        (ScopeKind.TENANT, Metric.BUDGET),
        (ScopeKind.PLATFORM, Metric.BUDGET),
        (ScopeKind.TENANT, Metric.DAILY_TOKENS),
    ]


async def test_what_the_store_cannot_take_waits(store: Store) -> None:
    """While the store is away nothing is lost; what is written in the end is raised then."""

    class Away(SqlQuotaEvents):
        is_away = True

        async def add(self, *args: Any, **kwargs: Any) -> bool:
            if self.is_away:
                raise StoreUnavailable
            return await super().add(*args, **kwargs)

    sql = Away(store.database)
    window = Window(store, sql=sql, percents=(50,))
    async with window.thresholds.running():
        window.use(600)
        with pytest.raises(StoreUnavailable):
            await window.thresholds.write()
        assert window.raised == []
        sql.is_away = False
    assert [event.percent for event in window.raised] == [50]


async def test_a_flood_of_one_tenant_loses_no_others(store: Store) -> None:
    """Who has thousands of keys fills a part of what waits; what does not fit is raised later."""

    class Away(SqlQuotaEvents):
        async def add(self, event: QuotaEvent, *, is_to_deliver: bool) -> bool:
            return True

    raised: list[QuotaEvent] = []
    thresholds = Thresholds(Away(store.database), (50, 80, 100), on_raised=raised.append)
    flood, other = uuid4(), uuid4()
    keys = [Scope(ScopeKind.KEY, uuid4()) for _ in range(4000)]

    def use_keys() -> None:
        for key in keys:
            thresholds.note(key, flood, Metric.BUDGET, JANUARY, 1000, 1000)

    use_keys()
    thresholds.note(Scope(ScopeKind.TENANT, other), other, Metric.BUDGET, JANUARY, 1000, 1000)
    await thresholds.write()
    assert [event.percent for event in raised if event.tenant_id == other] == [50, 80, 100]
    for _ in range(5):
        use_keys()
        await thresholds.write()
    assert len(raised) == 3 * 4000 + 3


async def test_only_what_has_a_webhook_waits_for_it(store: Store) -> None:
    """Without a webhook an event is a row of history; with one it is due at once."""
    window = Window(store, percents=(50,))
    window.use(600)
    await window.thresholds.write()
    assert await store.quota_events.claim_due(10, lease_s=60) == []
    hooked = Window(store, percents=(50,), is_delivered=True)
    hooked.use(600, start_s=FEBRUARY)
    await hooked.thresholds.write()
    [due] = await store.quota_events.claim_due(10, lease_s=60)
    assert due.event == hooked.raised[0]
    assert (due.tenant, due.attempt) == ("acme", 1)
    # Nobody else gets it while the lease lasts; with none, it is handed out again.
    assert await store.quota_events.claim_due(10, lease_s=60) == []
    await store.quota_events.failed(due.event.id, retry_in_s=0)
    [again] = await store.quota_events.claim_due(10, lease_s=0)
    assert again.attempt == 2
    assert [event.attempt for event in await store.quota_events.claim_due(10, lease_s=0)] == [3]
    await store.quota_events.delivered(due.event.id)
    assert await store.quota_events.claim_due(10, lease_s=0) == []
    query = select(quota_events.c.id).where(quota_events.c.delivered_at.is_not(None))
    async with store.database.platform() as connection:
        assert list((await connection.execute(query)).scalars()) == [due.event.id]


async def test_a_tenant_sees_its_own_events_alone(store: Store) -> None:
    """Row-level security holds for events as for all that has a tenant."""
    window = Window(store, percents=(50,))
    window.use(600)
    window.thresholds.note(
        Scope(ScopeKind.ORGANISATION, uuid4()), None, Metric.BUDGET, JANUARY, 600, 1000
    )
    await window.thresholds.write()
    assert store.first_start is not None
    [acme, globex] = [issued.key.tenant_id for issued in store.first_start.keys]
    seen = {}
    for tenant_id in (acme, globex):
        async with store.database.tenant(tenant_id) as connection:
            seen[tenant_id] = len((await connection.execute(select(quota_events.c.id))).all())
    assert seen == {acme: 1, globex: 0}
