"""What counts, bills and tells, put together over real stores."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select

from gateway.app.accounting import open_accounting
from gateway.domain.quota import Quota, Scope, ScopeKind, ScopeQuota
from gateway.domain.usage import Outcome
from gateway.services.ledger import PriceBook
from gateway.settings import Settings
from gateway.store import Store
from gateway.store.tables import quota_events
from tests.gateway.services.quotas.scripted import FakeRun, terms

pytestmark = pytest.mark.anyio


async def test_a_threshold_below_a_quarter_is_told(settings: Settings, store: Store) -> None:
    """A tenant that uses a tenth of its quota passes 5 and 10 % in the table, and no more."""
    assert store.first_start is not None
    key = store.first_start.keys[0].key
    quota = Quota(daily_tokens=200)
    asked = terms(quota, num_prompt_tokens=10)
    limits = (ScopeQuota(Scope(ScopeKind.TENANT, key.tenant_id), quota),)
    principal = replace(
        asked.principal, tenant_id=key.tenant_id, key_id=key.id, kid=key.kid, quotas=limits
    )
    told = settings.model_copy(update={"quota_thresholds": (5, 10, 25), "quota_build_s": 0})
    async with open_accounting(told, store, PriceBook(store.prices)) as books:
        lease = await books.quotas.reserve(replace(asked, principal=principal))
        lease.attach([FakeRun(10, prefilled=10)])
        lease.settle(Outcome.COMPLETED)
        await books.quotas.link.flush()
    async with store.database.platform() as connection:
        rows = await connection.execute(select(quota_events.c.percent, quota_events.c.used))
        assert sorted(map(tuple, rows)) == [(5, 20), (10, 20)]
