"""Limits that are set, laid over and inherited, and what of them a key's requests meet."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import insert, select, update

from gateway.domain.quota import PLATFORM, Quota, Scope, ScopeKind, ScopeQuota
from gateway.domain.quota_settings import QuotaHolder, QuotaOverride
from gateway.domain.window import Window
from gateway.errors import NotFound, VersionConflict
from gateway.store import Store
from gateway.store.tables import audit_log, plans, quotas, tenants
from tests.gateway.admin_app import ACTOR

pytestmark = pytest.mark.anyio


class Scopes:
    """Name every holder of limits that the first start's key of acme meets."""

    def __init__(self, store: Store) -> None:
        assert store.first_start is not None
        self.store = store
        self.api_key = store.first_start.keys[0].key

    async def load(self) -> Scopes:
        organisation = await self.store.organisations.default()
        tenant_id = self.api_key.tenant_id
        self.organisation = QuotaHolder(
            Scope(ScopeKind.ORGANISATION, organisation.id), organisation.name, organisation.id
        )
        self.platform = QuotaHolder(PLATFORM, "platform", organisation.id)
        self.tenant = QuotaHolder(
            Scope(ScopeKind.TENANT, tenant_id), "acme", organisation.id, tenant_id
        )
        self.key = QuotaHolder(
            Scope(ScopeKind.KEY, self.api_key.id), self.api_key.kid, organisation.id, tenant_id
        )
        return self

    async def put_on_plan(self, quota: Quota) -> QuotaHolder:
        """Make a plan and put acme on it."""
        plan_id, organisation_id = uuid4(), self.organisation.organisation_id
        async with self.store.database.platform() as connection:
            await connection.execute(
                insert(plans).values(id=plan_id, organisation_id=organisation_id, name="gold")
            )
            await connection.execute(
                update(tenants)
                .where(tenants.c.id == self.api_key.tenant_id)
                .values(plan_id=plan_id)
            )
        plan = QuotaHolder(Scope(ScopeKind.PLAN, plan_id), "gold", organisation_id)
        await self.store.quota_settings.put(ACTOR, plan, quota)
        return plan

    async def met(self) -> tuple[ScopeQuota, ...]:
        record = await self.store.keys.find(self.api_key.kid)
        assert record is not None
        return tuple(replace(one, changed_us=0) for one in record.principal.quotas)

    async def changed_us(self) -> int:
        """Say when the limits of the one scope that has any were changed."""
        record = await self.store.keys.find(self.api_key.kid)
        assert record is not None
        [one] = record.principal.quotas
        return one.changed_us


@pytest.fixture
async def scopes(store: Store) -> Scopes:
    return await Scopes(store).load()


async def test_a_key_without_limits_meets_none(scopes: Scopes) -> None:
    """Scopes that never set anything are left out."""
    assert await scopes.met() == ()


async def test_a_scope_that_took_its_limits_off_is_named_with_the_change(scopes: Scopes) -> None:
    """So counters can tell that its limits are gone from not having heard of them."""
    settings = scopes.store.quota_settings
    await settings.put(ACTOR, scopes.tenant, Quota(daily_tokens=1))
    before = await scopes.changed_us()
    await settings.put(ACTOR, scopes.tenant, Quota())
    assert await scopes.met() == (ScopeQuota(scopes.tenant.scope, Quota()),)
    assert await scopes.changed_us() > before
    over = QuotaOverride(Quota(daily_tokens=1), datetime.now(UTC) + timedelta(seconds=0.1))
    await settings.override(ACTOR, scopes.tenant, over)
    before = await scopes.changed_us()
    await asyncio.sleep(0.2)
    assert await scopes.met() == (ScopeQuota(scopes.tenant.scope, Quota()),)
    assert await scopes.changed_us() > before


async def test_the_narrowest_scope_comes_first(scopes: Scopes) -> None:
    """Key, tenant, organisation and platform each bring the limits they set."""
    settings = scopes.store.quota_settings
    await settings.put(ACTOR, scopes.platform, Quota(concurrency=4))
    await settings.put(ACTOR, scopes.organisation, Quota(rpm=3))
    await settings.put(ACTOR, scopes.tenant, Quota(budget_nano_usd=2, budget_window=Window("30d")))
    await settings.put(ACTOR, scopes.key, Quota(input_tpm=1))
    assert await scopes.met() == (
        ScopeQuota(scopes.key.scope, Quota(input_tpm=1)),
        ScopeQuota(scopes.tenant.scope, Quota(budget_nano_usd=2, budget_window=Window("30d"))),
        ScopeQuota(scopes.organisation.scope, Quota(rpm=3)),
        ScopeQuota(PLATFORM, Quota(concurrency=4)),
    )


async def test_a_tenant_inherits_what_it_leaves_open(scopes: Scopes) -> None:
    """Over the plan's limits lie the tenant's own, over both its override."""
    settings = scopes.store.quota_settings
    await scopes.put_on_plan(Quota(rpm=1, input_tpm=10, output_tpm=100))
    await settings.put(ACTOR, scopes.tenant, Quota(rpm=2, input_tpm=20))
    ends_at = datetime.now(UTC) + timedelta(hours=1)
    await settings.override(ACTOR, scopes.tenant, QuotaOverride(Quota(rpm=3), ends_at, "demo day"))
    [met] = await scopes.met()
    assert met == ScopeQuota(scopes.tenant.scope, Quota(rpm=3, input_tpm=20, output_tpm=100))


async def test_an_override_ends_by_itself(scopes: Scopes) -> None:
    """At its end the limits below hold again; until then the record says when that is."""
    settings = scopes.store.quota_settings
    await settings.put(ACTOR, scopes.key, Quota(rpm=1))
    soon = datetime.now(UTC) + timedelta(hours=1)
    await settings.override(ACTOR, scopes.key, QuotaOverride(Quota(rpm=9), soon))
    record = await scopes.store.keys.find(scopes.api_key.kid)
    assert record is not None
    assert record.changes_at == soon
    over = QuotaOverride(Quota(rpm=9), datetime.now(UTC) - timedelta(seconds=1))
    await settings.override(ACTOR, scopes.key, over)
    assert await scopes.met() == (ScopeQuota(scopes.key.scope, Quota(rpm=1)),)
    assert (await settings.get(scopes.key)).override is None


async def test_every_change_of_a_tenants_limits_is_later_than_all_before(scopes: Scopes) -> None:
    """Its own, its override's and its end, its plan's, and that it is on another plan."""
    store, tenant = scopes.store, scopes.tenant
    settings, seen = store.quota_settings, []
    organisation = await store.organisations.default()

    async def move(plan: str | None) -> None:
        await store.tenants.update(ACTOR, organisation.id, "acme", {"plan": plan})

    await settings.put(ACTOR, tenant, Quota(rpm=1))
    seen.append(await scopes.changed_us())
    await settings.put(ACTOR, tenant, Quota())
    await settings.put(ACTOR, tenant, Quota(rpm=1))
    seen.append(await scopes.changed_us())
    over = QuotaOverride(Quota(rpm=9), datetime.now(UTC) + timedelta(hours=1))
    await settings.override(ACTOR, tenant, over)
    seen.append(await scopes.changed_us())
    await settings.clear(ACTOR, tenant)
    seen.append(await scopes.changed_us())
    soon = QuotaOverride(Quota(rpm=9), datetime.now(UTC) + timedelta(seconds=0.1))
    await settings.override(ACTOR, tenant, soon)
    seen.append(await scopes.changed_us())
    await asyncio.sleep(0.15)
    seen.append(await scopes.changed_us())
    for name in ("gold", "silver"):
        await store.plans.add(ACTOR, organisation.id, name, Quota(input_tpm=5))
    for plan in ("gold", "silver", "gold"):
        await move(plan)
        seen.append(await scopes.changed_us())
    await store.plans.update(ACTOR, organisation.id, "gold", {"input_tpm": 6})
    seen.append(await scopes.changed_us())
    assert seen == sorted(set(seen))
    assert await scopes.changed_us() == seen[-1]


async def test_an_override_is_taken_back(scopes: Scopes) -> None:
    """Clearing leaves what the scope has set; clearing nothing changes nothing."""
    settings = scopes.store.quota_settings
    await settings.put(ACTOR, scopes.key, Quota(rpm=1))
    ends_at = datetime.now(UTC) + timedelta(hours=1)
    laid = await settings.override(ACTOR, scopes.key, QuotaOverride(Quota(rpm=9), ends_at, "x"))
    assert (laid.quota, laid.effective.quota) == (Quota(rpm=1), Quota(rpm=9))
    assert laid.override == QuotaOverride(Quota(rpm=9), ends_at, "x", is_operators=True)
    cleared = await settings.clear(ACTOR, scopes.key)
    assert (cleared.override, cleared.effective.quota, cleared.version) == (None, Quota(rpm=1), 3)
    assert await settings.clear(ACTOR, scopes.key) == cleared


async def test_a_patch_changes_what_it_names(scopes: Scopes) -> None:
    """A field that is not named stays, None takes a limit back."""
    settings = scopes.store.quota_settings
    await settings.put(ACTOR, scopes.tenant, Quota(rpm=1, concurrency=2))
    changes = {"rpm": None, "budget_nano_usd": 5, "budget_window": Window("week")}
    patched = await settings.patch(ACTOR, scopes.tenant, changes)
    assert patched.quota == Quota(concurrency=2, budget_nano_usd=5, budget_window=Window("week"))
    assert await settings.get(scopes.tenant) == patched


async def test_a_version_guards_a_change(scopes: Scopes) -> None:
    """A change for an older version is refused with what is there, and changes nothing."""
    settings = scopes.store.quota_settings
    first = await settings.put(ACTOR, scopes.tenant, Quota(rpm=1), version=0)
    second = await settings.put(ACTOR, scopes.tenant, Quota(rpm=2), version=first.version)
    with pytest.raises(VersionConflict) as refused:
        await settings.patch(ACTOR, scopes.tenant, {"rpm": 3}, version=first.version)
    assert refused.value.current == second
    assert await settings.get(scopes.tenant) == second


async def test_of_two_changes_of_one_version_one_wins(scopes: Scopes) -> None:
    """Changes that run together and name the same version: one is made, one refused."""
    put = scopes.store.quota_settings.put
    done = await asyncio.gather(
        *(put(ACTOR, scopes.tenant, Quota(rpm=n), version=0) for n in range(1, 5)),
        return_exceptions=True,
    )
    refused = [one for one in done if isinstance(one, VersionConflict)]
    assert len(refused) == 3
    assert (await scopes.store.quota_settings.get(scopes.tenant)).version == 1


async def test_a_plans_limits_and_the_plan_have_one_version(scopes: Scopes) -> None:
    """Setting a plan's limits makes the plan's next version; a plan that is gone has no limits."""
    settings = scopes.store.quota_settings
    plan = await scopes.put_on_plan(Quota(rpm=1))
    assert (await settings.get(plan)).version == 2
    assert (await settings.patch(ACTOR, plan, {"rpm": 2}, version=2)).version == 3
    gone = QuotaHolder(Scope(ScopeKind.PLAN, uuid4()), "gone", plan.organisation_id)
    with pytest.raises(NotFound):
        await settings.put(ACTOR, gone, Quota(rpm=1))


async def test_a_change_of_limits_is_in_the_audit_log(scopes: Scopes) -> None:
    """Who, from where, on whose behalf, and the limits before and after."""
    settings = scopes.store.quota_settings
    await settings.put(ACTOR, scopes.tenant, Quota(rpm=1))
    await settings.patch(ACTOR, scopes.tenant, {"rpm": 2})
    await settings.patch(ACTOR, scopes.tenant, {"rpm": 2})
    query = select(audit_log).where(audit_log.c.object_kind == "quota").order_by(audit_log.c.seq)
    async with scopes.store.database.platform() as connection:
        rows = (await connection.execute(query)).all()
    assert [row.action for row in rows] == ["quota.set", "quota.set"]
    changed = rows[1]
    assert (changed.actor, changed.actor_role, changed.ip, changed.request_id) == (
        "ann",
        "owner",
        "127.0.0.1",
        "r1",
    )
    assert changed.tenant_id == scopes.tenant.tenant_id
    assert (changed.before["quota"]["rpm"], changed.after["quota"]["rpm"]) == (1, 2)


async def test_a_tenant_sees_its_own_limits_without_any_where(scopes: Scopes) -> None:
    """A query that forgot its WHERE returns the limits of the tenant and of its keys alone."""
    settings, organisation_id = scopes.store.quota_settings, scopes.organisation.organisation_id
    globex = await scopes.store.tenants.by_name(organisation_id, "globex")
    assert globex is not None
    other = QuotaHolder(Scope(ScopeKind.TENANT, globex.id), "globex", organisation_id, globex.id)
    for holder in (scopes.platform, scopes.organisation, scopes.tenant, scopes.key, other):
        await settings.put(ACTOR, holder, Quota(rpm=1))
    async with scopes.store.database.tenant(globex.id) as connection:
        assert (await connection.scalars(select(quotas.c.scope_id))).all() == [globex.id]
