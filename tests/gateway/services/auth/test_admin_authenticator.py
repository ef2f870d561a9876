"""Who opens the admin API, and as what."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from sqlalchemy import update

from gateway.api.admin.routes import admin_routes
from gateway.api.public import with_errors
from gateway.credentials import ADMIN_PREFIX, KEY_PREFIX, new_token
from gateway.domain.admin import Admin, AdminRole, AdminTokenRecord
from gateway.domain.page import PageRequest
from gateway.errors import (
    AuthenticationFailed,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    StoreUnavailable,
    TenantLimited,
)
from gateway.ports import AdminTokenStore
from gateway.services.auth import admin_authenticator
from gateway.services.auth.admin_authenticator import AdminAuthenticator
from gateway.services.read_rate import ReadRate
from gateway.store import Store
from gateway.store.tables import admin_tokens
from tests.gateway.admin_app import ACTOR, Process, admin_client, new_process

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ours(store: Store) -> Process:
    return await new_process(store)


@pytest.fixture
async def owner(store: Store) -> Admin:
    return Admin("ann", AdminRole.OWNER, (await store.organisations.default()).id)


async def authenticator(store: Store, ours: Process) -> AdminAuthenticator:
    organisation = await store.organisations.default()
    return AdminAuthenticator(
        store.admin_tokens, store.secrets, organisation.id, store.admin_epoch, keys=ours.auth
    )


@pytest.mark.parametrize("role", AdminRole)
async def test_a_token_speaks_for_its_role(
    store: Store, ours: Process, owner: Admin, role: AdminRole
) -> None:
    """With its name, and for the roles of a tenant with the tenant; a revoked one is refused."""
    tenant = "acme" if role.is_of_tenant else None
    issued = await ours.services.tokens.create(owner, ACTOR, name="ci", role=role, tenant=tenant)
    auth = ours.admin_auth
    admin = await auth.authenticate(issued.text)
    assert (admin.name, admin.role, admin.organisation_id) == ("ci", role, owner.organisation_id)
    assert admin.tenant_id == issued.admin_token.tenant_id
    assert (admin.tenant_id is not None) == role.is_of_tenant
    await ours.services.tokens.revoke(owner, ACTOR, issued.admin_token.kid)
    with pytest.raises(AuthenticationFailed):
        await auth.authenticate(issued.text)


@pytest.mark.parametrize("asked", [{"is_change": True}, {"reads": 10}])
async def test_a_tenants_people_change_less_often_than_they_read(
    store: Store, ours: Process, owner: Admin, asked: dict[str, Any]
) -> None:
    """A change counts for ten of its tenant's reads, as a look at usage does; not an operator's."""
    auth = AdminAuthenticator(
        store.admin_tokens,
        store.secrets,
        owner.organisation_id,
        store.admin_epoch,
        reads=ReadRate(25, hold_s=0.0),
    )
    issue = ours.services.tokens.create
    theirs = await issue(owner, ACTOR, name="a", role=AdminRole.TENANT_OWNER, tenant="acme")
    operators = await issue(owner, ACTOR, name="b", role=AdminRole.OPERATOR)
    for _ in range(2):
        await auth.authenticate(theirs.text, **asked)
    with pytest.raises(TenantLimited):
        await auth.authenticate(theirs.text, **asked)
    await auth.authenticate(theirs.text)
    for _ in range(5):
        await auth.authenticate(operators.text, **asked)


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
        store.admin_epoch,
        clock=_At((ends_at - timedelta(seconds=1)).timestamp()),
    )
    assert (await auth.authenticate(issued.text)).role is AdminRole.VIEWER
    auth = AdminAuthenticator(
        store.admin_tokens,
        store.secrets,
        owner.organisation_id,
        store.admin_epoch,
        clock=_At(ends_at.timestamp()),
    )
    with pytest.raises(AuthenticationFailed):
        await auth.authenticate(issued.text)


async def test_a_known_token_is_remembered_for_what_asks_for_memory(
    store: Store, ours: Process, owner: Admin
) -> None:
    """While the store is silent it is good for the grace, for metrics; for nothing else."""
    known, unknown = [
        await ours.services.tokens.create(owner, ACTOR, name=name, role=AdminRole.VIEWER)
        for name in ("known", "unknown")
    ]
    tokens, clock = _Tokens(store.admin_tokens), _At(datetime.now(UTC).timestamp())
    auth = AdminAuthenticator(
        cast(AdminTokenStore, tokens),
        store.secrets,
        owner.organisation_id,
        store.admin_epoch,
        clock=clock,
        grace_s=60,
    )
    await auth.authenticate(known.text, from_memory=True)
    tokens.is_away = True
    clock.now_s += 29
    assert (await auth.authenticate(known.text, from_memory=True)).name == "known"
    for text, from_memory in ((known.text, False), (unknown.text, True)):
        with pytest.raises(StoreUnavailable):
            await auth.authenticate(text, from_memory=from_memory)
    # A server that is frozen answers nothing, not even that.
    tokens.is_frozen = True
    clock.now_s += 30
    assert (await auth.authenticate(known.text, from_memory=True)).name == "known"
    tokens.is_frozen = False
    clock.now_s += 2
    with pytest.raises(StoreUnavailable):
        await auth.authenticate(known.text, from_memory=True)


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_revoked_token_is_remembered_by_nobody(
    store: Store, ours: Process, owner: Admin, elsewhere: bool
) -> None:
    """From its revocation on, in this process and in others, a silent store opens nothing to it."""
    issued = await ours.services.tokens.create(owner, ACTOR, name="ci", role=AdminRole.OWNER)
    tokens = _Tokens(store.admin_tokens)
    theirs = await new_process(store, tokens=cast(AdminTokenStore, tokens))
    await theirs.admin_auth.authenticate(issued.text, from_memory=True)
    revoking = ours if elsewhere else theirs
    await revoking.services.tokens.revoke(owner, ACTOR, issued.admin_token.kid)
    await theirs.admin_auth.follow_epoch()
    tokens.is_away = True
    for from_memory in (False, True):
        with pytest.raises(StoreUnavailable):
            await theirs.admin_auth.authenticate(issued.text, from_memory=from_memory)


async def test_an_answer_from_before_a_revocation_is_not_remembered(
    store: Store, ours: Process, owner: Admin
) -> None:
    """A query that was under way then may still answer; nobody is let in by it later."""
    issued = await ours.services.tokens.create(owner, ACTOR, name="ci", role=AdminRole.OWNER)
    tokens = _Tokens(store.admin_tokens)
    theirs = await new_process(store, tokens=cast(AdminTokenStore, tokens))
    tokens.hold = asyncio.Event()
    asking = asyncio.create_task(theirs.admin_auth.authenticate(issued.text, from_memory=True))
    await tokens.found.wait()
    await theirs.services.tokens.revoke(owner, ACTOR, issued.admin_token.kid)
    tokens.hold.set()
    assert (await asking).name == "ci"
    tokens.is_away = True
    with pytest.raises(StoreUnavailable):
        await theirs.admin_auth.authenticate(issued.text, from_memory=True)


@pytest.mark.parametrize("is_asked_meanwhile", [False, True])
async def test_a_process_knows_its_own_revocations_without_the_epoch(
    store: Store, ours: Process, owner: Admin, is_asked_meanwhile: bool
) -> None:
    """With Redis away too, what was revoked here is remembered by nobody here."""
    issued = await ours.services.tokens.create(owner, ACTOR, name="ci", role=AdminRole.OWNER)
    tokens = _Tokens(store.admin_tokens)
    clock = _At(datetime.now(UTC).timestamp())
    here = await new_process(
        store, tokens=cast(AdminTokenStore, tokens), epoch=_NoEpoch(), clock=clock
    )
    await here.admin_auth.authenticate(issued.text, from_memory=True)
    if is_asked_meanwhile:
        clock.now_s += 10
        tokens.hold = asyncio.Event()
        asking = asyncio.create_task(here.admin_auth.authenticate(issued.text, from_memory=True))
        await tokens.found.wait()
    await here.services.tokens.revoke(owner, ACTOR, issued.admin_token.kid)
    if tokens.hold is not None:
        tokens.hold.set()
        await asking
    tokens.is_away = True
    with pytest.raises(StoreUnavailable):
        await here.admin_auth.authenticate(issued.text, from_memory=True)


async def test_a_revoked_owner_mints_nothing_while_the_store_is_silent(
    store: Store, ours: Process, owner: Admin
) -> None:
    """Whoever was an owner a moment ago writes nothing, whether the store answers or not."""
    issued = await ours.services.tokens.create(owner, ACTOR, name="ci", role=AdminRole.OWNER)
    tokens = _Tokens(store.admin_tokens)
    theirs = await new_process(store, tokens=cast(AdminTokenStore, tokens))
    app = with_errors(admin_routes(theirs.services, theirs.admin_auth))
    new_owner = {"name": "mine", "role": "owner"}
    async with admin_client(app, issued.text) as client:
        for path in ("/admin/v1/tokens", "/admin/v1/tenants"):
            assert (await client.get(path)).status_code == 200
        await ours.services.tokens.revoke(owner, ACTOR, issued.admin_token.kid)
        tokens.is_away = True
        assert (await client.post("/admin/v1/tokens", json=new_owner)).status_code == 503
        tokens.is_away = False
        assert (await client.post("/admin/v1/tokens", json=new_owner)).status_code == 401
    page = await ours.services.tokens.page(PageRequest(100))
    assert "mine" not in {token.name for token in page.data}


async def test_the_machines_own_token_is_an_owners(store: Store, owner: Admin) -> None:
    """It opens the process that made it, and is in no database."""
    local = new_token(ADMIN_PREFIX)
    auth = AdminAuthenticator(
        store.admin_tokens,
        store.secrets,
        owner.organisation_id,
        store.admin_epoch,
        local_token=local,
    )
    admin = await auth.authenticate(local.text)
    assert (admin.name, admin.role) == ("local", AdminRole.OWNER)
    other = AdminAuthenticator(
        store.admin_tokens, store.secrets, owner.organisation_id, store.admin_epoch
    )
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
    forged = store.secrets.issue(ADMIN_PREFIX, issued.admin_token.kid)
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


@pytest.mark.changes_nothing
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


@pytest.mark.changes_nothing
@pytest.mark.parametrize("token_id", ["", "x", "k" * 12, "\x00"])
async def test_an_unknown_token_is_not_revoked(ours: Process, owner: Admin, token_id: str) -> None:
    """Whatever does not name a token is not found."""
    with pytest.raises(NotFound):
        await ours.services.tokens.revoke(owner, ACTOR, token_id)


async def test_a_short_grace_is_kept(
    store: Store, ours: Process, owner: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known for longer than the grace opens nothing while the store is silent."""
    monkeypatch.setattr(random, "uniform", lambda low, high: low)
    issued = await ours.services.tokens.create(owner, ACTOR, name="ci", role=AdminRole.VIEWER)
    tokens, clock = _Tokens(store.admin_tokens), _At(datetime.now(UTC).timestamp())
    auth = AdminAuthenticator(
        cast(AdminTokenStore, tokens),
        store.secrets,
        owner.organisation_id,
        store.admin_epoch,
        clock=clock,
        grace_s=1,
    )
    await auth.authenticate(issued.text)
    tokens.is_away = True
    clock.now_s += 9
    with pytest.raises(StoreUnavailable):
        await auth.authenticate(issued.text, from_memory=True)


async def test_a_token_is_looked_up_once_in_its_life(
    store: Store, ours: Process, owner: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds at most, for reads and changes; requests that come together ask once."""
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    issued = await ours.services.tokens.create(owner, ACTOR, name="ci", role=AdminRole.OWNER)
    tokens, clock = _Tokens(store.admin_tokens), _At(datetime.now(UTC).timestamp())
    here = await new_process(store, tokens=cast(AdminTokenStore, tokens), clock=clock)
    ask = here.admin_auth.authenticate
    await asyncio.gather(*(ask(issued.text) for _ in range(20)))
    for is_change in (False, True):
        assert (await ask(issued.text, is_change=is_change)).name == "ci"
    assert tokens.num_asked == 1
    clock.now_s += 10
    await ask(issued.text)
    assert tokens.num_asked == 2


async def test_tokens_that_are_refused_ask_once_too(
    store: Store, ours: Process, owner: Admin
) -> None:
    """A revoked one, a wrong secret of a known one, one that nobody has: none floods the store."""
    issued = await ours.services.tokens.create(owner, ACTOR, name="ci", role=AdminRole.OWNER)
    await ours.services.tokens.revoke(owner, ACTOR, issued.admin_token.kid)
    forged = store.secrets.issue(ADMIN_PREFIX, issued.admin_token.kid)
    stranger = new_token(ADMIN_PREFIX)
    tokens = _Tokens(store.admin_tokens)
    here = await new_process(store, tokens=cast(AdminTokenStore, tokens))
    for _ in range(50):
        for text in (issued.text, forged.text, stranger.text):
            with pytest.raises(AuthenticationFailed):
                await here.admin_auth.authenticate(text)
    assert tokens.num_asked == 2


async def test_what_is_known_of_tokens_is_bounded(
    store: Store, ours: Process, owner: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was used longest ago goes first; strangers' push out none of ours."""
    monkeypatch.setattr(admin_authenticator, "_MAX_SEEN", 2)
    issued = [
        await ours.services.tokens.create(owner, ACTOR, name="ci", role=AdminRole.VIEWER)
        for _ in range(3)
    ]
    tokens = _Tokens(store.admin_tokens)
    here = await new_process(store, tokens=cast(AdminTokenStore, tokens))
    for number in (0, 1, 0, 2):
        await here.admin_auth.authenticate(issued[number].text)
    assert tokens.num_asked == 3
    for _ in range(5):
        with pytest.raises(AuthenticationFailed):
            await here.admin_auth.authenticate(new_token(ADMIN_PREFIX).text)
    await here.admin_auth.authenticate(issued[0].text)
    assert tokens.num_asked == 8
    await here.admin_auth.authenticate(issued[1].text)
    assert tokens.num_asked == 9


async def test_a_token_ends_while_it_is_known(store: Store, ours: Process, owner: Admin) -> None:
    """Its end is compared each time, by this process's clock, without a query."""
    issued = await ours.services.tokens.create(
        owner, ACTOR, name="ci", role=AdminRole.VIEWER, expires_in_s=60
    )
    assert issued.admin_token.expires_at is not None
    clock = _At(issued.admin_token.expires_at.timestamp() - 1)
    here = await new_process(store, clock=clock)
    await here.admin_auth.authenticate(issued.text)
    clock.now_s += 1
    for is_change in (False, True):
        with pytest.raises(AuthenticationFailed):
            await here.admin_auth.authenticate(issued.text, is_change=is_change)


@pytest.mark.parametrize("is_heard", [False, True])
async def test_what_a_token_may_is_read_anew(
    store: Store, ours: Process, owner: Admin, is_heard: bool
) -> None:
    """A role that was changed holds when the epoch moved, or after the life in memory."""
    issued = await ours.services.tokens.create(owner, ACTOR, name="ci", role=AdminRole.OPERATOR)
    clock = _At(datetime.now(UTC).timestamp())
    here = await new_process(store, clock=clock)
    await here.admin_auth.follow_epoch()
    await here.admin_auth.authenticate(issued.text)
    async with store.database.platform() as connection:
        changed = update(admin_tokens).where(admin_tokens.c.kid == issued.admin_token.kid)
        await connection.execute(changed.values(role="viewer"))
    assert (await here.admin_auth.authenticate(issued.text)).role is AdminRole.OPERATOR
    if is_heard:
        await store.admin_epoch.advance()
        await here.admin_auth.follow_epoch()
    else:
        clock.now_s += 10
    assert (await here.admin_auth.authenticate(issued.text)).role is AdminRole.VIEWER


async def test_another_process_hears_of_a_revocation(
    store: Store, ours: Process, owner: Admin
) -> None:
    """Within a second for what it reads; at once for what it changes."""
    issued = await ours.services.tokens.create(owner, ACTOR, name="ci", role=AdminRole.OWNER)
    theirs = await new_process(store)
    async with theirs.admin_auth.running():
        await theirs.admin_auth.authenticate(issued.text)
        await ours.services.tokens.revoke(owner, ACTOR, issued.admin_token.kid)
        assert (await theirs.admin_auth.authenticate(issued.text)).name == "ci"
        with pytest.raises(AuthenticationFailed):
            await theirs.admin_auth.authenticate(issued.text, is_change=True)

    other = await ours.services.tokens.create(owner, ACTOR, name="ci", role=AdminRole.OWNER)
    async with theirs.admin_auth.running():
        await theirs.admin_auth.authenticate(other.text)
        await ours.services.tokens.revoke(owner, ACTOR, other.admin_token.kid)
        async with asyncio.timeout(5):  # a busy machine's second
            while await _is_let_in(theirs, other.text):
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("is_change", [False, True])
async def test_without_redis_a_revocation_elsewhere_holds_in_time(
    store: Store, ours: Process, owner: Admin, is_change: bool
) -> None:
    """Within ten seconds for reads, and at once for changes, which then ask the store."""
    issued = await ours.services.tokens.create(owner, ACTOR, name="ci", role=AdminRole.OWNER)
    clock = _At(datetime.now(UTC).timestamp())
    theirs = await new_process(store, epoch=_NoEpoch(), clock=clock)
    await theirs.admin_auth.authenticate(issued.text)
    await ours.services.tokens.revoke(owner, ACTOR, issued.admin_token.kid)
    await theirs.admin_auth.follow_epoch()
    clock.now_s += 0 if is_change else 10
    with pytest.raises(AuthenticationFailed):
        await theirs.admin_auth.authenticate(issued.text, is_change=is_change)


async def test_a_change_does_not_wait_for_a_query_from_before_a_revocation(
    store: Store, ours: Process, owner: Admin
) -> None:
    """What was asked before may not know of it; a change asks by itself."""
    issued = await ours.services.tokens.create(owner, ACTOR, name="ci", role=AdminRole.OWNER)
    tokens = _Tokens(store.admin_tokens)
    theirs = await new_process(store, tokens=cast(AdminTokenStore, tokens))
    tokens.hold = asyncio.Event()
    reading = asyncio.create_task(theirs.admin_auth.authenticate(issued.text))
    await tokens.found.wait()
    await ours.services.tokens.revoke(owner, ACTOR, issued.admin_token.kid)
    changing = asyncio.create_task(theirs.admin_auth.authenticate(issued.text, is_change=True))
    while tokens.num_asked < 2:
        await asyncio.sleep(0.001)
    tokens.hold.set()
    assert (await reading).name == "ci"
    with pytest.raises(AuthenticationFailed):
        await changing
    # Nor is the answer from before remembered for the next one.
    with pytest.raises(AuthenticationFailed):
        await theirs.admin_auth.authenticate(issued.text, is_change=True)


async def test_a_change_that_looks_at_the_epoch_hears_of_a_revocation_here(
    store: Store, ours: Process, owner: Admin
) -> None:
    """Between a token's end and the epoch's move nobody is let in by what was known before."""
    issued = await ours.services.tokens.create(owner, ACTOR, name="ci", role=AdminRole.OWNER)
    epoch = _HeldEpoch()
    here = await new_process(store, epoch=epoch)
    await here.admin_auth.authenticate(issued.text)
    epoch.hold.clear()
    changing = asyncio.create_task(here.admin_auth.authenticate(issued.text, is_change=True))
    await epoch.asked.wait()
    await store.admin_tokens.revoke(ACTOR, owner.organisation_id, issued.admin_token.kid)
    here.admin_auth.forget(issued.admin_token.kid)
    epoch.hold.set()
    with pytest.raises(AuthenticationFailed):
        await changing


async def _is_let_in(process: Process, text: str) -> bool:
    try:
        await process.admin_auth.authenticate(text)
    except AuthenticationFailed:
        return False
    return True


class _Tokens:
    """Find tokens, until the store is away."""

    def __init__(self, store: AdminTokenStore) -> None:
        self._store = store
        self.is_away = self.is_frozen = False
        self.num_asked = 0
        # What was found is held back until this is set.
        self.hold: asyncio.Event | None = None
        self.found = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def find(self, kid: str) -> AdminTokenRecord | None:
        self.num_asked += 1
        if self.is_frozen:
            await asyncio.sleep(5)
        if self.is_away:
            raise StoreUnavailable(detail="away")
        record = await self._store.find(kid)
        if self.hold is not None:
            self.found.set()
            await self.hold.wait()
        return record


class _NoEpoch:
    """Stand for a Redis that is away."""

    async def current(self) -> int | None:
        return None

    async def advance(self, changed: str | None = None) -> None:
        return

    async def changed(self, after: int, to: int) -> None:
        return


class _HeldEpoch(_NoEpoch):
    """Stand for a Redis where nothing changes, and whose answer is held back."""

    def __init__(self) -> None:
        self.hold, self.asked = asyncio.Event(), asyncio.Event()
        self.hold.set()

    async def current(self) -> int | None:
        if not self.hold.is_set():
            self.asked.set()
        await self.hold.wait()
        return 1


class _At:
    """Stand still."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s
