"""Who opens the admin API, and as what."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from gateway.credentials import ADMIN_PREFIX, KEY_PREFIX, new_token
from gateway.domain.admin import Admin, AdminRole, AdminTokenRecord
from gateway.errors import (
    AuthenticationFailed,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    StoreUnavailable,
)
from gateway.ports import AdminTokenStore
from gateway.services.admin_auth import AdminAuthenticator
from gateway.store import Store
from tests.gateway.admin_app import ACTOR, Process, new_process

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ours(store: Store) -> Process:
    return new_process(store)


@pytest.fixture
async def owner(store: Store) -> Admin:
    return Admin("ann", AdminRole.OWNER, (await store.organisations.default()).id)


async def authenticator(store: Store, ours: Process) -> AdminAuthenticator:
    organisation = await store.organisations.default()
    return AdminAuthenticator(store.admin_tokens, store.secrets, organisation.id, keys=ours.auth)


@pytest.mark.parametrize("role", AdminRole)
async def test_a_token_speaks_for_its_role(
    store: Store, ours: Process, owner: Admin, role: AdminRole
) -> None:
    """With its name, and for the roles of a tenant with the tenant; a revoked one is refused."""
    tenant = "acme" if role.is_of_tenant else None
    issued = await ours.services.tokens.create(owner, ACTOR, name="ci", role=role, tenant=tenant)
    auth = await authenticator(store, ours)
    admin = await auth.authenticate(issued.text)
    assert (admin.name, admin.role, admin.organisation_id) == ("ci", role, owner.organisation_id)
    assert admin.tenant_id == issued.admin_token.tenant_id
    assert (admin.tenant_id is not None) == role.is_of_tenant
    await ours.services.tokens.revoke(owner, ACTOR, issued.admin_token.kid)
    with pytest.raises(AuthenticationFailed):
        await auth.authenticate(issued.text)


async def test_a_token_ends_by_itself(store: Store, ours: Process, owner: Admin) -> None:
    """From its end on it is refused, by the clock of the process."""
    issued = await ours.services.tokens.create(
        owner, ACTOR, name="ci", role=AdminRole.VIEWER, expires_in_s=60
    )
    ends_at = issued.admin_token.expires_at
    assert ends_at is not None
    auth = AdminAuthenticator(
        store.admin_tokens,
        store.secrets,
        owner.organisation_id,
        clock=_At((ends_at - timedelta(seconds=1)).timestamp()),
    )
    assert (await auth.authenticate(issued.text)).role is AdminRole.VIEWER
    auth = AdminAuthenticator(
        store.admin_tokens, store.secrets, owner.organisation_id, clock=_At(ends_at.timestamp())
    )
    with pytest.raises(AuthenticationFailed):
        await auth.authenticate(issued.text)


async def test_a_known_token_outlives_its_store_for_a_while(
    store: Store, ours: Process, owner: Admin
) -> None:
    """While the store does not answer it is good for the grace; a revoked or unknown one is not."""
    known, revoked, unknown = [
        await ours.services.tokens.create(owner, ACTOR, name=name, role=AdminRole.VIEWER)
        for name in ("known", "revoked", "unknown")
    ]
    tokens, clock = _Tokens(store.admin_tokens), _At(datetime.now(UTC).timestamp())
    auth = AdminAuthenticator(
        cast(AdminTokenStore, tokens),
        store.secrets,
        owner.organisation_id,
        clock=clock,
        grace_s=60,
    )
    for issued in (known, revoked):
        await auth.authenticate(issued.text)
    await ours.services.tokens.revoke(owner, ACTOR, revoked.admin_token.kid)
    with pytest.raises(AuthenticationFailed):
        await auth.authenticate(revoked.text)
    tokens.is_away = True
    clock.now_s += 29
    assert (await auth.authenticate(known.text)).name == "known"
    # A server that is frozen answers nothing, not even that.
    tokens.is_frozen = True
    clock.now_s += 30
    assert (await auth.authenticate(known.text)).name == "known"
    with pytest.raises(AuthenticationFailed):
        await auth.authenticate(revoked.text)
    tokens.is_frozen = False
    with pytest.raises(StoreUnavailable):
        await auth.authenticate(unknown.text)
    clock.now_s += 2
    with pytest.raises(StoreUnavailable):
        await auth.authenticate(known.text)


async def test_the_machines_own_token_is_an_owners(store: Store, owner: Admin) -> None:
    """It opens the process that made it, and is in no database."""
    local = new_token(ADMIN_PREFIX)
    auth = AdminAuthenticator(
        store.admin_tokens, store.secrets, owner.organisation_id, local_token=local
    )
    admin = await auth.authenticate(local.text)
    assert (admin.name, admin.role) == ("local", AdminRole.OWNER)
    other = AdminAuthenticator(store.admin_tokens, store.secrets, owner.organisation_id)
    with pytest.raises(AuthenticationFailed):
        await other.authenticate(local.text)


async def test_a_key_with_admin_read_reads_for_its_tenant(store: Store, ours: Process) -> None:
    """It is a viewer of its tenant, from its networks; a key without the right is a stranger."""
    issued = await ours.services.keys.create(ACTOR, "acme", admin_read=True, cidrs=["10.0.0.0/8"])
    auth = await authenticator(store, ours)
    admin = await auth.authenticate(issued.token)
    assert (admin.role, admin.tenant_id) == (AdminRole.TENANT_VIEWER, issued.key.tenant_id)
    assert (admin.name, admin.cidrs) == (f"key:{issued.key.kid}", ("10.0.0.0/8",))
    await ours.services.keys.update(ACTOR, issued.key.kid, {"admin_read": False})
    for text in (issued.token, "", new_token(ADMIN_PREFIX).text, new_token(KEY_PREFIX).text):
        with pytest.raises(AuthenticationFailed):
            await auth.authenticate(text)


async def test_a_wrong_secret_of_a_known_token_is_refused(
    store: Store, ours: Process, owner: Admin
) -> None:
    """The public part of a token opens nothing."""
    issued = await ours.services.tokens.create(owner, ACTOR, name="ci", role=AdminRole.OWNER)
    forged = new_token(ADMIN_PREFIX, issued.admin_token.kid)
    with pytest.raises(AuthenticationFailed):
        await (await authenticator(store, ours)).authenticate(forged.text)


@pytest.mark.parametrize("granting", AdminRole)
@pytest.mark.parametrize("role", AdminRole)
async def test_nobody_grants_more_than_they_may(
    ours: Process, owner: Admin, granting: AdminRole, role: AdminRole
) -> None:
    """A role gives itself and what it holds every right of; an owner gives all."""
    holds = {
        AdminRole.OWNER: set(AdminRole),
        AdminRole.OPERATOR: set(AdminRole) - {AdminRole.OWNER},
        AdminRole.VIEWER: {AdminRole.VIEWER, AdminRole.TENANT_VIEWER},
        AdminRole.TENANT_OWNER: {AdminRole.TENANT_OWNER, AdminRole.TENANT_VIEWER},
        AdminRole.TENANT_VIEWER: {AdminRole.TENANT_VIEWER},
    }
    acme = await ours.services.tenants.get("acme")
    admin = Admin("x", granting, owner.organisation_id, acme.id if granting.is_of_tenant else None)
    tenant = "acme" if role.is_of_tenant else None
    create = ours.services.tokens.create(admin, ACTOR, name="new", role=role, tenant=tenant)
    if role in holds[granting]:
        assert (await create).admin_token.role is role
    else:
        with pytest.raises(PermissionDenied):
            await create


async def test_a_tenants_admin_grants_for_the_tenant_alone(ours: Process, owner: Admin) -> None:
    """Another tenant is not there for them."""
    acme = await ours.services.tenants.get("acme")
    admin = Admin("x", AdminRole.TENANT_OWNER, owner.organisation_id, acme.id)
    with pytest.raises(NotFound):
        await ours.services.tokens.create(
            admin, ACTOR, name="new", role=AdminRole.TENANT_VIEWER, tenant="globex"
        )


@pytest.mark.parametrize(
    ("role", "tenant", "name", "expires_in_s", "param"),
    [
        (AdminRole.VIEWER, "acme", "x", None, "tenant"),
        (AdminRole.TENANT_VIEWER, None, "x", None, "tenant"),
        (AdminRole.VIEWER, None, "A b", None, "name"),
        (AdminRole.VIEWER, None, "x", 0.0, "expires_in_s"),
    ],
)
async def test_a_token_that_makes_no_sense_is_refused(
    ours: Process,
    owner: Admin,
    role: AdminRole,
    tenant: str | None,
    name: str,
    expires_in_s: float | None,
    param: str,
) -> None:
    """The refusal names the field."""
    with pytest.raises(InvalidRequest) as refused:
        await ours.services.tokens.create(
            owner, ACTOR, name=name, role=role, tenant=tenant, expires_in_s=expires_in_s
        )
    assert refused.value.param == param


@pytest.mark.parametrize("token_id", ["", "x", "k" * 12, "\x00"])
async def test_an_unknown_token_is_not_revoked(ours: Process, owner: Admin, token_id: str) -> None:
    """Whatever does not name a token is not found."""
    with pytest.raises(NotFound):
        await ours.services.tokens.revoke(owner, ACTOR, token_id)


class _Tokens:
    """Find tokens, until the store is away."""

    def __init__(self, store: AdminTokenStore) -> None:
        self._store = store
        self.is_away = self.is_frozen = False

    async def find(self, kid: str) -> AdminTokenRecord | None:
        if self.is_frozen:
            await asyncio.sleep(5)
        if self.is_away:
            raise StoreUnavailable(detail="away")
        return await self._store.find(kid)


class _At:
    """Stand still."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s
