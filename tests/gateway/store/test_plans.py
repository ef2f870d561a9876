"""Plans in PostgreSQL: made, changed, used, removed."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import func, select

from gateway.domain import TenantSlo
from gateway.domain.page import PageRequest
from gateway.domain.plan import Plan
from gateway.domain.quota import Quota
from gateway.domain.window import Window
from gateway.errors import Conflict, NotFound, VersionConflict
from gateway.store import Store
from gateway.store.tables import quotas
from tests.gateway.admin_app import ACTOR

pytestmark = pytest.mark.anyio

QUOTA = Quota(rpm=10, budget_nano_usd=5, budget_window=Window("30d"), budget_hard=True)


async def test_a_plan_is_made_and_listed(store: Store) -> None:
    """Plans come by name, with their limits; a name is taken once."""
    organisation = await store.organisations.default()
    made = {name: await store.plans.add(ACTOR, organisation.id, name, QUOTA) for name in "ba"}
    page = await store.plans.page(organisation.id, PageRequest())
    assert page.data == [made["a"], made["b"]]
    assert (made["a"].quota, made["a"].version) == (QUOTA, 1)
    assert await store.plans.by_name(organisation.id, "a") == made["a"]
    with pytest.raises(Conflict):
        await store.plans.add(ACTOR, organisation.id, "a", Quota())


async def test_a_plan_is_changed(store: Store) -> None:
    """The limits that are named are set, as the next version; an old version is refused."""
    organisation = await store.organisations.default()
    plan = await store.plans.add(ACTOR, organisation.id, "gold", QUOTA)
    change = {"rpm": None, "concurrency": 3}
    changed = await store.plans.update(ACTOR, organisation.id, "gold", change, version=1)
    assert changed is not None
    assert (changed.version, changed.quota.rpm, changed.quota.concurrency) == (2, None, 3)
    assert changed.quota.budget_window == Window("30d")
    assert await store.plans.by_name(organisation.id, "gold") == changed
    with pytest.raises(VersionConflict) as refused:
        await store.plans.update(ACTOR, organisation.id, "gold", {"rpm": 1}, version=plan.version)
    assert refused.value.current == changed
    assert await store.plans.update(ACTOR, organisation.id, "none", {"rpm": 1}) is None


async def test_a_plan_that_tenants_are_on_stays(store: Store) -> None:
    """It is removed, with its limits, once nobody is on it."""
    organisation = await store.organisations.default()
    await store.plans.add(ACTOR, organisation.id, "gold", QUOTA)
    tenant = await store.tenants.add(ACTOR, organisation.id, "t", 1.0, TenantSlo(), "gold")
    assert tenant.plan == "gold"
    with pytest.raises(Conflict):
        await store.plans.remove(ACTOR, organisation.id, "gold")
    moved = await store.tenants.update(ACTOR, organisation.id, "t", {"plan": None})
    assert moved is not None
    assert moved.plan is None
    with pytest.raises(VersionConflict):
        await store.plans.remove(ACTOR, organisation.id, "gold", version=7)
    assert await store.plans.remove(ACTOR, organisation.id, "gold") is not None
    assert await store.plans.remove(ACTOR, organisation.id, "gold") is None
    async with store.database.platform() as connection:
        of_plans = select(func.count()).where(quotas.c.scope_kind == "plan")
        assert await connection.scalar(of_plans) == 0


async def test_a_plan_that_is_not_there_takes_no_tenant(store: Store) -> None:
    """Neither a new tenant nor one that is there, and neither is changed."""
    organisation = await store.organisations.default()
    with pytest.raises(NotFound):
        await store.tenants.add(ACTOR, organisation.id, "t", 1.0, TenantSlo(), "none")
    with pytest.raises(NotFound):
        await store.tenants.update(ACTOR, organisation.id, "acme", {"weight": 2, "plan": "none"})
    acme = await store.tenants.by_name(organisation.id, "acme")
    assert acme is not None
    assert (acme.weight, acme.version) == (1.0, 1)


async def test_removing_and_joining_at_once_agree(store: Store) -> None:
    """Of a plan's removal and a tenant's move to it, one wins and the other is told so."""
    organisation = await store.organisations.default()
    for number in range(5):
        name = f"plan-{number}"
        await store.plans.add(ACTOR, organisation.id, name, QUOTA)
        removal, move = await asyncio.gather(
            store.plans.remove(ACTOR, organisation.id, name),
            store.tenants.update(ACTOR, organisation.id, "acme", {"plan": name}),
            return_exceptions=True,
        )
        assert isinstance(removal, Plan) == isinstance(move, NotFound)
        assert isinstance(removal, Plan | Conflict)
