"""Orgs in PostgreSQL: made, changed, belonged to, removed."""

from __future__ import annotations

from uuid import UUID

import pytest
from sqlalchemy import select

from gateway.domain import TenantChoices, TenantSlo
from gateway.domain.admin import AuditFilter
from gateway.domain.page import PageRequest
from gateway.domain.quota import Quota
from gateway.errors import Conflict, NotFound, VersionConflict
from gateway.store import Store
from gateway.store.tables import orgs
from tests.gateway.admin_app import ACTOR

pytestmark = pytest.mark.anyio


async def test_an_org_is_made_listed_and_changed(store: Store) -> None:
    """Orgs come by name; a name is taken once, a weight is set as the next version."""
    of = (await store.organisations.default()).id
    made = {name: await store.orgs.add(ACTOR, of, name, 2.0) for name in "ba"}
    assert (await store.orgs.page(of, PageRequest())).data == [made["a"], made["b"]]
    assert await store.orgs.by_name(of, "a") == made["a"]
    with pytest.raises(Conflict):
        await store.orgs.add(ACTOR, of, "a", 1.0)
    changed = await store.orgs.update(ACTOR, of, "a", {"weight": 5.0}, version=1)
    assert changed is not None
    assert (changed.weight, changed.version) == (5.0, 2)
    assert await store.orgs.update(ACTOR, of, "a", {"weight": 5.0}) == changed
    with pytest.raises(VersionConflict) as refused:
        await store.orgs.update(ACTOR, of, "a", {"weight": 6.0}, version=1)
    assert refused.value.current == changed
    assert await store.orgs.update(ACTOR, of, "none", {"weight": 6.0}) is None


async def test_an_org_that_tenants_belong_to_stays(store: Store) -> None:
    """It is removed once nobody belongs to it, and then nobody can."""
    of = (await store.organisations.default()).id
    org = await store.orgs.add(ACTOR, of, "umbrella", 1.0)
    tenant = await store.tenants.add(ACTOR, of, "t", 1.0, TenantSlo(), org="umbrella")
    assert (tenant.org, tenant.org_id) == ("umbrella", org.id)
    with pytest.raises(Conflict):
        await store.orgs.remove(ACTOR, of, "umbrella")
    left = await store.tenants.update(ACTOR, of, "t", {"org": None})
    assert left is not None
    assert (left.org, left.org_id, left.version) == (None, None, 2)
    with pytest.raises(VersionConflict):
        await store.orgs.remove(ACTOR, of, "umbrella", version=7)
    assert await store.orgs.remove(ACTOR, of, "umbrella") == org
    assert await store.orgs.remove(ACTOR, of, "umbrella") is None
    with pytest.raises(NotFound):
        await store.tenants.update(ACTOR, of, "t", {"weight": 2, "org": "umbrella"})
    with pytest.raises(NotFound):
        await store.tenants.add(ACTOR, of, "u", 1.0, TenantSlo(), org="umbrella")


async def test_what_a_tenant_may_be_put_into_is_named(store: Store) -> None:
    """Plans and orgs of its organisation come by name, and no more of either than asked for."""
    of = (await store.organisations.default()).id
    for name in "cab":
        await store.orgs.add(ACTOR, of, f"org-{name}", 1.0)
    await store.plans.add(ACTOR, of, "a-plan", Quota())
    choices = await store.tenants.choices(of, 2)
    assert (choices.orgs, choices.plans[0]) == (["org-a", "org-b"], "a-plan")
    assert len((await store.tenants.choices(of, 1)).plans) == 1
    assert await store.tenants.choices(UUID(int=9), 2) == TenantChoices([], [])


async def test_a_key_speaks_for_its_tenants_org(store: Store) -> None:
    """Who authenticates learns the org and its weight of now; a tenant of none has neither."""
    assert store.first_start is not None
    of = (await store.organisations.default()).id
    org = await store.orgs.add(ACTOR, of, "umbrella", 4.0)
    kid = store.first_start.keys[0].key.kid
    record = await store.keys.find(kid)
    assert record is not None
    assert (record.principal.org_id, record.principal.org_weight) == (None, 1.0)
    await store.tenants.update(ACTOR, of, "acme", {"org": "umbrella"})
    record = await store.keys.find(kid)
    assert record is not None
    assert (record.principal.org_id, record.principal.org_weight) == (org.id, 4.0)


async def test_what_becomes_of_an_org_is_in_the_audit_log(store: Store) -> None:
    """Each change has its record, and one that changes nothing has none."""
    of = (await store.organisations.default()).id
    await store.orgs.add(ACTOR, of, "umbrella", 1.0)
    for _ in range(2):
        await store.orgs.update(ACTOR, of, "umbrella", {"weight": 2.0})
    await store.tenants.update(ACTOR, of, "acme", {"org": "umbrella"})
    await store.tenants.update(ACTOR, of, "acme", {"org": None})
    await store.orgs.remove(ACTOR, of, "umbrella")
    page = await store.audit.page(of, AuditFilter(object_kind="org"), PageRequest())
    told = [(r.entry.action, r.entry.before, r.entry.after) for r in page.data]
    one, two = {"name": "umbrella", "weight": 1.0}, {"name": "umbrella", "weight": 2.0}
    assert sorted(told, key=str) == sorted(
        [("org.create", None, one), ("org.update", one, two), ("org.delete", two, None)], key=str
    )


async def test_a_tenant_sees_its_own_org_alone(store: Store) -> None:
    """Who else there is, is not for it."""
    of = (await store.organisations.default()).id
    for name in ("umbrella", "other"):
        await store.orgs.add(ACTOR, of, name, 1.0)
    await store.tenants.update(ACTOR, of, "acme", {"org": "umbrella"})
    await store.tenants.update(ACTOR, of, "globex", {"org": "other"})
    acme = await store.tenants.by_name(of, "acme")
    assert acme is not None
    async with store.database.tenant(acme.id) as connection:
        assert (await connection.scalars(select(orgs.c.name))).all() == ["umbrella"]
    page = await store.tenants.page(of, acme.id, PageRequest())
    assert [(tenant.name, tenant.org) for tenant in page.data] == [("acme", "umbrella")]
