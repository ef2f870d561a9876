"""Tenants and keys on a real store, from issue to revocation."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from gateway.domain import ApiKey, KeyStatus, TenantSlo, Tier
from gateway.domain.admin import AdminRole
from gateway.domain.page import PageRequest
from gateway.errors import AuthenticationFailed, Conflict, InvalidRequest, NotFound
from gateway.services.admin.keys import KeyService
from gateway.services.admin.tenants import TenantService
from gateway.services.auth.admin_authenticator import AdminAuthenticator
from gateway.services.auth.authenticator import Authenticator
from gateway.services.auth.upkeep import AuthUpkeep
from gateway.store import Store
from tests.gateway.admin_app import ACTOR, Running, new_process

pytestmark = pytest.mark.anyio


@dataclass
class Services:
    """Hold the services of one process over a shared store."""

    tenants: TenantService
    keys: KeyService
    auth: Authenticator
    upkeep: AuthUpkeep
    running: Running


async def services(store: Store) -> Services:
    """Build the services of one more process."""
    process = await new_process(store)
    return Services(
        tenants=process.services.tenants,
        keys=process.services.keys,
        auth=process.auth,
        upkeep=process.upkeep,
        running=process.running,
    )


async def listed(ours: Services, tenant: str | None = None) -> Sequence[ApiKey]:
    return (await ours.keys.page(PageRequest(), tenant=tenant)).data


@pytest.fixture
async def ours(store: Store) -> Services:
    return await services(store)


async def test_a_tenant_is_made_and_listed(ours: Services) -> None:
    """Tenants are listed by name with their weights."""
    made = await ours.tenants.create(ACTOR, "research", weight=2.5)
    assert [(tenant.name, tenant.weight) for tenant in await ours.tenants.list()] == [
        ("acme", 1.0),
        ("globex", 1.0),
        ("research", 2.5),
    ]
    assert await ours.tenants.get("research") == made


async def test_a_taken_name_is_a_conflict(ours: Services) -> None:
    """Two tenants of one organisation never share a name, even when made at once."""
    with pytest.raises(Conflict):
        await ours.tenants.create(ACTOR, "acme")
    results = await asyncio.gather(
        *(ours.tenants.create(ACTOR, "twin") for _ in range(4)), return_exceptions=True
    )
    assert sum(isinstance(result, Conflict) for result in results) == 3


@pytest.mark.changes_nothing
@pytest.mark.parametrize("name", ["", "A", "-a", "a b", "é", "a" * 64, "a\n", "a/b", "a\x00"])
async def test_a_bad_name_is_refused(ours: Services, name: str) -> None:
    """A name outside the rule names its field; nothing is made."""
    with pytest.raises(InvalidRequest) as refused:
        await ours.tenants.create(ACTOR, name)
    assert refused.value.param == "name"
    with pytest.raises(InvalidRequest):
        await ours.keys.create(ACTOR, "acme", name=name)
    assert len(await ours.tenants.list()) == 2


@pytest.mark.changes_nothing
@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
async def test_a_bad_weight_is_refused(ours: Services, weight: float) -> None:
    """A weight is finite and above 0."""
    with pytest.raises(InvalidRequest) as refused:
        await ours.tenants.create(ACTOR, "research", weight=weight)
    assert refused.value.param == "weight"
    with pytest.raises(InvalidRequest):
        await ours.tenants.update(ACTOR, "acme", {"weight": weight})
    assert (await ours.tenants.get("acme")).weight == 1.0


@pytest.mark.changes_nothing
@pytest.mark.parametrize("ms", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("promise", ["ttft_ms", "tpot_ms", "max_gap_ms"])
async def test_a_bad_promise_is_refused(ours: Services, promise: str, ms: float) -> None:
    """A promise is finite and above 0, or none."""
    with pytest.raises(InvalidRequest) as refused:
        await ours.tenants.create(ACTOR, "research", slo=TenantSlo(**{promise: ms}))
    assert refused.value.param == promise
    with pytest.raises(InvalidRequest):
        await ours.tenants.update(ACTOR, "acme", {promise: ms})
    assert (await ours.tenants.get("acme")).slo == TenantSlo()


async def test_a_change_of_a_tenant_sets_what_it_names(ours: Services) -> None:
    """A weight or a promise is set, a promise taken back, and the rest stays as it was."""
    made = await ours.tenants.create(
        ACTOR, "research", weight=2, slo=TenantSlo(ttft_ms=500, tpot_ms=20)
    )
    assert made.slo == TenantSlo(500, 20, None)
    changed = await ours.tenants.update(ACTOR, "research", {"weight": 5, "max_gap_ms": 60.5})
    assert (changed.weight, changed.slo) == (5, TenantSlo(500, 20, 60.5))
    changed = await ours.tenants.update(ACTOR, "research", {"ttft_ms": None})
    assert (changed.weight, changed.slo) == (5, TenantSlo(None, 20, 60.5))
    for promise in ("ttft_ms", "tpot_ms", "max_gap_ms"):
        with pytest.raises(InvalidRequest, match="at least 1 ms"):
            await ours.tenants.update(ACTOR, "research", {promise: 0.001})
    assert await ours.tenants.get("research") == changed
    assert await ours.tenants.update(ACTOR, "research", {}) == changed
    assert [tenant.weight for tenant in ours.running.told] == [5, 5]
    assert (await ours.tenants.get("acme")).weight == 1.0


@pytest.mark.changes_nothing
@pytest.mark.parametrize("name", ["nobody", "", "a\x00"])
async def test_no_tenant_no_change(ours: Services, name: str) -> None:
    """A tenant that does not exist cannot be changed."""
    with pytest.raises(NotFound):
        await ours.tenants.update(ACTOR, name, {"weight": 2})
    assert ours.running.told == []


async def test_a_change_of_a_tenant_holds_for_its_next_request(ours: Services) -> None:
    """A cached principal has its old weight and promises no longer, nor another tenant's new."""
    acme, globex = [(await ours.keys.create(ACTOR, name)).token for name in ("acme", "globex")]
    for token in (acme, globex):
        assert (await ours.auth.authenticate(token)).weight == 1.0
    await ours.tenants.update(ACTOR, "acme", {"weight": 3, "ttft_ms": 250})
    principal = await ours.auth.authenticate(acme)
    assert (principal.weight, principal.slo) == (3, TenantSlo(ttft_ms=250))
    assert (await ours.auth.authenticate(globex)).weight == 1.0


async def test_a_change_of_a_tenant_reaches_other_processes(store: Store, ours: Services) -> None:
    """Another process that follows the epoch serves with the new weight soon after."""
    theirs = await services(store)
    token = (await ours.keys.create(ACTOR, "acme")).token
    await theirs.upkeep.follow_epoch()
    assert (await theirs.auth.authenticate(token)).weight == 1.0
    await ours.tenants.update(ACTOR, "acme", {"weight": 3})
    await theirs.upkeep.follow_epoch()
    assert (await theirs.auth.authenticate(token)).weight == 3.0


@pytest.mark.parametrize("tier", Tier)
async def test_a_key_has_a_best_tier(ours: Services, tier: Tier) -> None:
    """A key's tier is stored, listed, and its principal's; without one it is the default."""
    issued = await ours.keys.create(ACTOR, "acme", max_tier=tier)
    assert (await ours.auth.authenticate(issued.token)).max_tier is tier
    plain = await ours.keys.create(ACTOR, "acme")
    assert plain.key.max_tier is Tier.DEFAULT
    tiers = {key.kid: key.max_tier for key in await listed(ours, "acme")}
    assert (tiers[issued.key.kid], tiers[plain.key.kid]) == (tier, Tier.DEFAULT)


async def test_an_issued_key_opens_its_tenant_and_no_other(ours: Services) -> None:
    """The principal of a new key is its tenant, with its weight."""
    tenant = await ours.tenants.create(ACTOR, "research", weight=3)
    issued = await ours.keys.create(ACTOR, "research", name="notebook")
    principal = await ours.auth.authenticate(issued.token)
    assert (principal.tenant_id, principal.tenant, principal.weight) == (
        tenant.id,
        "research",
        3.0,
    )
    assert (principal.key_id, principal.kid) == (issued.key.id, issued.key.kid)
    assert [key.name for key in await listed(ours, "research")] == ["notebook"]


@pytest.mark.parametrize("by", ["id", "kid"])
async def test_a_revoked_key_is_dead_at_once(ours: Services, by: str) -> None:
    """The process that revokes refuses the key's next request, cached or not."""
    issued = await ours.keys.create(ACTOR, "acme")
    await ours.auth.authenticate(issued.token)
    revoked = await ours.keys.revoke(ACTOR, str(getattr(issued.key, by)))
    assert revoked.status is KeyStatus.REVOKED
    with pytest.raises(AuthenticationFailed):
        await ours.auth.authenticate(issued.token)
    assert await ours.keys.revoke(ACTOR, issued.key.kid) == revoked


async def test_a_revocation_reaches_other_processes(store: Store, ours: Services) -> None:
    """Another process that follows the epoch refuses the key soon after."""
    theirs = await services(store)
    issued = await ours.keys.create(ACTOR, "acme")
    async with theirs.upkeep.running():
        await theirs.auth.authenticate(issued.token)
        await ours.keys.revoke(ACTOR, issued.key.kid)
        for _ in range(100):
            try:
                await theirs.auth.authenticate(issued.token)
            except AuthenticationFailed:
                return
            await asyncio.sleep(0.05)
    pytest.fail("the key was still admitted after 5 s")


@pytest.mark.changes_nothing
@pytest.mark.parametrize(
    "key_id", ["", "nothing", "a" * 12, str(UUID(int=7)), "'; DROP TABLE keys"]
)
async def test_an_unknown_key_cannot_be_revoked(ours: Services, key_id: str) -> None:
    """Whatever does not name a key is not found."""
    with pytest.raises(NotFound):
        await ours.keys.revoke(ACTOR, key_id)


@pytest.mark.changes_nothing
async def test_a_key_of_no_tenant_is_not_found(ours: Services) -> None:
    """Issuing and listing name the tenant that is missing."""
    for call in (ours.keys.create(ACTOR, "nobody"), listed(ours, "nobody")):
        with pytest.raises(NotFound) as missing:
            await call
        assert missing.value.param == "tenant"


async def test_a_key_ends_by_itself(ours: Services) -> None:
    """A key with a life is listed with its end, and as expired after it."""
    issued = await ours.keys.create(ACTOR, "acme", expires_in_s=0.2)
    assert issued.key.expires_at is not None
    assert abs(issued.key.expires_at - datetime.now(UTC)) < timedelta(seconds=5)
    await asyncio.sleep(0.25)
    with pytest.raises(AuthenticationFailed):
        await ours.auth.authenticate(issued.token)
    statuses = {key.kid: key.status for key in await listed(ours)}
    assert statuses[issued.key.kid] is KeyStatus.EXPIRED


@pytest.mark.changes_nothing
@pytest.mark.parametrize("expires_in_s", [0.0, -1.0, math.nan, math.inf, 1e300])
async def test_a_bad_life_is_refused(ours: Services, expires_in_s: float) -> None:
    """A life is above 0 and has an end that a calendar can hold."""
    with pytest.raises(InvalidRequest) as refused:
        await ours.keys.create(ACTOR, "acme", expires_in_s=expires_in_s)
    assert refused.value.param == "expires_in_s"


async def test_the_last_use_is_seen_in_the_list(store: Store, ours: Services) -> None:
    """After the upkeep's round the list says when a key was used; it never moves back."""
    issued = await ours.keys.create(ACTOR, "acme")
    await ours.auth.authenticate(issued.token)
    await ours.upkeep.write_used()
    [used] = [key for key in await listed(ours) if key.kid == issued.key.kid]
    assert used.last_used_at is not None
    await store.keys.touch({used.id: used.last_used_at - timedelta(hours=1)})
    [again] = [key for key in await listed(ours) if key.kid == issued.key.kid]
    assert again.last_used_at == used.last_used_at


async def test_the_first_starts_tokens_work(store: Store, ours: Services) -> None:
    """What the banner shows opens the API and the admin API."""
    assert store.first_start is not None
    for issued in store.first_start.keys:
        assert (await ours.auth.authenticate(issued.token)).tenant == issued.key.tenant
    organisation = await store.organisations.default()
    auth = AdminAuthenticator(store.admin_tokens, store.secrets, organisation.id, store.admin_epoch)
    admin = await auth.authenticate(store.first_start.admin_token)
    assert (admin.role, admin.organisation_id) == (AdminRole.OWNER, organisation.id)
    with pytest.raises(AuthenticationFailed):
        await auth.authenticate(store.first_start.keys[0].token)


@pytest.mark.parametrize("promise", ["tpot_ms", "max_gap_ms"])
async def test_a_promise_that_others_would_pay_for_is_refused_when_set(
    ours: Services, promise: str
) -> None:
    """The refusal says what is feasible; what is promised already stays as other things change."""
    await ours.tenants.create(ACTOR, "research", slo=TenantSlo(**{promise: 30.0}))
    ours.running.least_ms = 44.2
    with pytest.raises(InvalidRequest, match="45 ms is feasible") as refused:
        await ours.tenants.update(ACTOR, "acme", {promise: 30.0})
    assert refused.value.param == promise
    with pytest.raises(InvalidRequest):
        await ours.tenants.create(ACTOR, "other", slo=TenantSlo(**{promise: 44.0}))
    kept = await ours.tenants.update(ACTOR, "research", {"weight": 2.0, "ttft_ms": 1.0})
    assert getattr(kept.slo, promise) == 30.0
    await ours.tenants.update(ACTOR, "acme", {promise: 45.0})
