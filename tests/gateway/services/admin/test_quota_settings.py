"""Limits as admins set them: checked, in force at the next request, everywhere soon after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from gateway.domain.quota import MAX_AMOUNT, Metric, Quota, ScopeKind, ScopeQuota
from gateway.domain.window import Window
from gateway.errors import InvalidRequest, NotFound
from gateway.services.admin import QuotaSettingsService
from gateway.services.auth import Authenticator
from gateway.store import Store
from tests.gateway.admin_app import ACTOR, Process, new_process

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ours(store: Store) -> Process:
    return await new_process(store)


async def met(process: Process, token: str) -> Sequence[int | None]:
    """Return the requests a minute that each scope of a key allows, as its requests meet them.

    Those that had limits and have none are brought along, for the counters to know.
    """
    principal = await process.auth.authenticate(token)
    return [scope.quota.rpm for scope in principal.quotas if not scope.quota.is_empty]


async def test_a_change_holds_for_the_next_request(store: Store, ours: Process) -> None:
    """Of every scope and of a plan, whatever the cache holds; in other processes soon after."""
    theirs = await new_process(store)
    issued = await ours.services.keys.create(ACTOR, "acme")
    settings, kinds = ours.services.quota_settings, ScopeKind
    await ours.services.plans.create(ACTOR, "gold", {"rpm": 1})
    named = {kinds.KEY: issued.key.kid, kinds.TENANT: "acme", kinds.PLAN: "gold"}
    expected: list[int] = []
    await theirs.upkeep.follow_epoch()
    for rpm, kind in enumerate((kinds.PLATFORM, kinds.ORGANISATION, kinds.TENANT, kinds.KEY), 2):
        for process in (ours, theirs):
            assert await met(process, issued.token) == expected
        holder = await settings.holder(kind, named.get(kind, "-"))
        await settings.put(ACTOR, holder, {"rpm": rpm})
        expected.insert(0, rpm)
        assert await met(ours, issued.token) == expected
        await theirs.upkeep.follow_epoch()
        assert await met(theirs, issued.token) == expected
    tenant = await settings.holder(kinds.TENANT, "acme")
    await settings.patch(ACTOR, tenant, {"rpm": None})
    assert await met(ours, issued.token) == [5, 3, 2]
    await ours.services.tenants.update(ACTOR, "acme", {"plan": "gold"})
    assert await met(ours, issued.token) == [5, 1, 3, 2]
    await ours.services.plans.update(ACTOR, "gold", {"rpm": 9})
    assert await met(ours, issued.token) == [5, 9, 3, 2]
    await settings.put(ACTOR, await settings.holder(kinds.PLAN, "gold"), {"rpm": 8})
    assert await met(ours, issued.token) == [5, 8, 3, 2]
    await settings.override(ACTOR, tenant, {"rpm": 0}, ends_in_s=60)
    assert await met(ours, issued.token) == [5, 0, 3, 2]
    await settings.clear(ACTOR, tenant)
    assert await met(ours, issued.token) == [5, 8, 3, 2]


async def test_a_change_is_told_to_whoever_counts(store: Store) -> None:
    """With the limits that hold now, plans aside, which nobody counts in."""
    loaded: list[ScopeQuota] = []

    payers: list[UUID | None] = []

    async def load(scope: ScopeQuota, tenant_id: UUID | None) -> None:
        loaded.append(scope)
        payers.append(tenant_id)

    services = (await new_process(store)).services
    auth = Authenticator(store.keys, store.secrets)
    assert store.first_start is not None
    settings = QuotaSettingsService(
        store.quota_settings,
        services.tenants,
        services.keys,
        services.plans,
        auth,
        store.auth_epoch,
        load=load,
    )
    await services.plans.create(ACTOR, "gold", {"rpm": 1})
    acme = await settings.holder(ScopeKind.TENANT, "acme")
    await settings.put(ACTOR, acme, {"daily_tokens": 5})
    await settings.patch(ACTOR, acme, {"rpm": 6})
    await settings.override(ACTOR, acme, {"rpm": 7}, ends_in_s=60)
    await settings.clear(ACTOR, acme)
    await settings.put(ACTOR, await settings.holder(ScopeKind.PLAN, "gold"), {"rpm": 8})
    assert [one.quota.rpm for one in loaded] == [None, 6, 7, 6]
    assert payers == 4 * [acme.tenant_id]
    key = await settings.holder(ScopeKind.KEY, store.first_start.keys[0].key.kid)
    await settings.put(ACTOR, key, {"rpm": 9})
    assert payers.pop() == acme.tenant_id, "in the turn of whose key it is"
    loaded.pop()
    changes = [one.changed_us for one in loaded]
    assert changes == sorted(set(changes))
    assert loaded[-1] == (await settings.get(acme)).effective


async def test_a_plan_shows_in_what_holds_for_its_tenant(ours: Process) -> None:
    """A tenant's own limits are its own; what holds has the plan's beneath them."""
    await ours.services.plans.create(ACTOR, "gold", {"rpm": 1, "concurrency": 2})
    await ours.services.tenants.update(ACTOR, "acme", {"plan": "gold"})
    settings = ours.services.quota_settings
    holder = await settings.holder(ScopeKind.TENANT, "acme")
    state = await settings.put(ACTOR, holder, {"rpm": 5, "budget_window": "24h"})
    assert state.quota == Quota(rpm=5, budget_window=Window("24h"))
    assert state.effective.quota == Quota(rpm=5, concurrency=2, budget_window=Window("24h"))


async def test_a_scope_holds_only_the_limits_that_are_for_it(
    ours: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of limits says which: a tenant's is one of its plan too, and of nobody else."""
    row = replace(Metric.RPM.row, scopes=(ScopeKind.TENANT, ScopeKind.PLAN))
    monkeypatch.setattr(Metric.RPM, "row", row)
    settings = ours.services.quota_settings
    tenant = await settings.holder(ScopeKind.TENANT, "acme")
    platform = await settings.holder(ScopeKind.PLATFORM, "-")
    await settings.put(ACTOR, tenant, {"rpm": 5})
    await ours.services.plans.create(ACTOR, "gold", {"rpm": 1})
    with pytest.raises(InvalidRequest, match="no limit of a platform") as refused:
        await settings.put(ACTOR, platform, {"rpm": 5})
    assert refused.value.param == "rpm"
    await settings.put(ACTOR, platform, {"rpm": None})


@pytest.mark.changes_nothing
@pytest.mark.parametrize(
    ("limits", "param"),
    [
        ({"rpm": -1}, "rpm"),
        ({"daily_tokens": MAX_AMOUNT + 1}, "daily_tokens"),
        ({"budget_nano_usd": -5}, "budget_nano_usd"),
        ({"budget_window": "year"}, "budget_window"),
        ({"budget_window": "0h"}, "budget_window"),
        ({"budget_window": "367d"}, "budget_window"),
    ],
)
async def test_a_bad_limit_is_refused(ours: Process, limits: dict[str, object], param: str) -> None:
    """However it is set, the field is named and nothing changes."""
    settings = ours.services.quota_settings
    holder = await settings.holder(ScopeKind.TENANT, "acme")
    for call in (
        settings.put(ACTOR, holder, limits),
        settings.patch(ACTOR, holder, limits),
        settings.override(ACTOR, holder, limits, ends_in_s=60),
        ours.services.plans.create(ACTOR, "gold", limits),
    ):
        with pytest.raises(InvalidRequest) as refused:
            await call
        assert refused.value.param == param
    assert (await settings.get(holder)).version == 0


@pytest.mark.changes_nothing
@pytest.mark.parametrize(
    ("ends_in_s", "reason", "param"),
    [
        (0.0, None, "ends_in_s"),
        (-1.0, None, "ends_in_s"),
        (math.nan, None, "ends_in_s"),
        (math.inf, None, "ends_in_s"),
        (366 * 86_400 + 1.0, None, "ends_in_s"),
        (60.0, "", "reason"),
        (60.0, "a\nb", "reason"),
        (60.0, "x" * 501, "reason"),
    ],
)
async def test_a_bad_override_is_refused(
    ours: Process, ends_in_s: float, reason: str | None, param: str
) -> None:
    """An override ends within a year and has a reason of one line, if any."""
    settings = ours.services.quota_settings
    holder = await settings.holder(ScopeKind.TENANT, "acme")
    with pytest.raises(InvalidRequest) as refused:
        await settings.override(ACTOR, holder, {"rpm": 1}, ends_in_s=ends_in_s, reason=reason)
    assert refused.value.param == param


@pytest.mark.changes_nothing
@pytest.mark.parametrize("kind", ScopeKind)
@pytest.mark.parametrize("named", ["nobody", "", "\x00", "a" * 12])
async def test_limits_of_nobody_are_not_found(ours: Process, kind: ScopeKind, named: str) -> None:
    """What does not name a scope has no limits."""
    with pytest.raises(NotFound):
        await ours.services.quota_settings.holder(kind, named)


async def test_a_tenants_admin_finds_its_own_scopes_alone(ours: Process) -> None:
    """The tenant and its keys; another's are not there."""
    acme = await ours.services.tenants.get("acme")
    theirs = (await ours.services.keys.create(ACTOR, "globex")).key
    mine = (await ours.services.keys.create(ACTOR, "acme")).key
    holder = ours.services.quota_settings.holder
    assert (await holder(ScopeKind.TENANT, "acme", within=acme.id)).scope.id == acme.id
    assert (await holder(ScopeKind.KEY, mine.kid, within=acme.id)).scope.id == mine.id
    for kind, named in ((ScopeKind.TENANT, "globex"), (ScopeKind.KEY, theirs.kid)):
        with pytest.raises(NotFound):
            await holder(kind, named, within=acme.id)
