"""A flood of keys that nobody was given, beside a client that has one."""

from __future__ import annotations

import logging
import zlib
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api.access import tenant_only
from gateway.api.admin.routes import admin_routes
from gateway.api.public import with_errors
from gateway.app.administration import admin_services
from gateway.app.signing_in import signing_in
from gateway.credentials import ADMIN_PREFIX, KEY_PREFIX, new_token
from gateway.domain import KeyDraft, KeyRecord, KeySecret
from gateway.domain.admin import Admin, AdminRole, AdminTokenRecord
from gateway.errors import StoreUnavailable
from gateway.services.auth import AdminAuthenticator, Authenticator, Failures, IssuedTokens
from gateway.services.auth.failures import BURST
from gateway.services.ledger import PriceBook
from gateway.settings import Settings
from gateway.store import Store
from gateway.store.admin_tokens import SqlAdminTokens
from gateway.store.keys import SqlKeys
from tests.fake_quotas import open_quotas
from tests.gateway.admin_app import ACTOR, Running
from tests.gateway.api.real_gateway import real_gateway

pytestmark = pytest.mark.anyio

FLOOD = 300
TENANTS = "/admin/v1/tenants"


class StillClock:
    """Stand still, however long a flood takes on this machine."""

    def time(self) -> float:
        return 1000.0

    def monotonic(self) -> float:
        return 1000.0


class Counted:
    """Pass everything on to a repository, and count what looks a token up."""

    def __init__(self, repository: Any) -> None:
        self._repository = repository
        self.num_queries = 0

    async def find(self, kid: str) -> KeyRecord | AdminTokenRecord | None:
        self.num_queries += 1
        found: KeyRecord | AdminTokenRecord | None = await self._repository.find(kid)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._repository, name)


class Ground:
    """Both ports of one process over a store whose look-ups are counted."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.issued = IssuedTokens(store.untagged, store.secrets)
        self.keys = Counted(store.keys)
        self.tokens = Counted(store.admin_tokens)
        self.auth = Authenticator(self.keys, store.secrets, issued=self.issued)
        failures = Failures(StillClock(), hold_s=0, log_s=0.2)
        self.public = with_errors([tenant_only("/", whoami, self.auth, method="GET")], failures)
        self._failures = failures

    async def open(self) -> None:
        await self.issued.refresh()
        organisation = await self.store.organisations.default()
        admin_auth = AdminAuthenticator(
            self.tokens,
            self.store.secrets,
            organisation.id,
            self.store.admin_epoch,
            issued=self.issued,
        )
        prices = PriceBook(self.store.prices)
        people = signing_in(self.store, self.auth, organisation.id)
        self.services = admin_services(
            self.store, self.auth, admin_auth, Running(), prices, open_quotas(), people
        )
        self.admin = with_errors(admin_routes(self.services, admin_auth), self._failures)


async def whoami(request: Request) -> Response:
    return JSONResponse(request.scope["state"]["principal"].tenant)


def from_address(app: Any, address: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://test")


@pytest.fixture
async def ground(store: Store) -> Ground:
    made = Ground(store)
    await made.open()
    return made


def like_ours(text: str) -> str:
    """Change the secret's last character and set the checksum right, as anyone can."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    unsigned = text[:-7] + ("a" if text[-7] != "a" else "b")
    value = zlib.crc32(unsigned.encode())
    return unsigned + "".join(digits[value // 62**place % 62] for place in reversed(range(6)))


@pytest.mark.parametrize(
    ("port", "path", "prefix"),
    [("public", "/", KEY_PREFIX), ("admin", TENANTS, ADMIN_PREFIX)],
)
async def test_random_keys_cost_no_query(ground: Ground, port: str, path: str, prefix: str) -> None:
    """However many come, well-formed, the store hears of none; a fresh key is one look-up."""
    first = ground.store.first_start
    assert first is not None
    live = first.admin_token if port == "admin" else first.keys[0].token
    statuses = []
    async with from_address(getattr(ground, port), "192.0.2.1") as http:
        for number in range(FLOOD):
            text = like_ours(live) if number % 2 else new_token(prefix).text
            answer = await http.get(path, headers={"x-api-key": text})
            statuses.append(answer.status_code)
        assert (ground.keys.num_queries, ground.tokens.num_queries) == (0, 0)
        # One that shares the address with the flood is served as any other.
        assert (await http.get(path, headers={"x-api-key": live})).status_code == 200
    assert ground.keys.num_queries + ground.tokens.num_queries == 1
    assert statuses == [401] * BURST + [429] * (FLOOD - BURST)


async def test_a_client_that_fails_too_often_is_told_to_wait(ground: Ground) -> None:
    """By the address that it has, whatever it claims; with a key or without; and no other."""
    async with from_address(ground.public, "192.0.2.1") as http:
        for number in range(BURST + 1):
            headers = {"x-forwarded-for": f"10.0.0.{number}"}
            limited = await http.get("/", headers=headers)
    assert (limited.status_code, limited.json()["error"]["code"]) == (429, "too_many_failures")
    assert limited.headers["retry-after"] == "1"
    assert limited.headers["x-should-retry"] == "false"
    async with from_address(ground.admin, "192.0.2.1") as http:
        assert (await http.get(TENANTS)).status_code == 429
    async with from_address(ground.public, "192.0.2.2") as http:
        other = await http.get("/")
    assert (other.status_code, other.headers["www-authenticate"]) == (401, "Bearer")


async def test_a_flood_is_a_line_a_second(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of refusals within a moment are not hundreds of lines, at any level."""
    caplog.set_level(logging.INFO, logger="gateway")
    async with from_address(ground.public, "192.0.2.1") as http:
        for _ in range(FLOOD):
            await http.get("/", headers={"x-api-key": new_token(KEY_PREFIX).text})
    names = [record.name for record in caplog.records]
    assert set(names) <= {"gateway.services.auth.failures"}
    assert len(names) < FLOOD / 10


async def test_what_is_issued_is_good_at_once(ground: Ground) -> None:
    """A new key and a new admin token open their routes before anything is read again."""
    key = await ground.services.keys.create(ACTOR, "acme")
    organisation = await ground.store.organisations.default()
    owner = Admin("ann", AdminRole.OWNER, organisation.id)
    token = await ground.services.tokens.create(owner, ACTOR, name="t", role=AdminRole.VIEWER)
    async with from_address(ground.public, "192.0.2.1") as http:
        assert (await http.get("/", headers={"x-api-key": key.token})).json() == "acme"
    async with from_address(ground.admin, "192.0.2.1") as http:
        answer = await http.get(TENANTS, headers={"x-api-key": token.text})
    assert answer.status_code == 200


async def test_keys_from_before_there_were_tags_stay_good(ground: Ground) -> None:
    """A key of an older process opens its tenant's routes, is rotated, and its successor is tagged;
    one made meanwhile is good from the next reading on.
    """
    organisation = await ground.store.organisations.default()
    tenant = await ground.store.tenants.by_name(organisation.id, "globex")
    assert tenant is not None
    old = new_token(KEY_PREFIX)
    secret = KeySecret(ground.store.secrets.pepper_id, ground.store.secrets.key_mac(old))
    await ground.store.keys.add(ACTOR, tenant, KeyDraft(kid=old.kid, name="old", secret=secret))
    async with from_address(ground.public, "192.0.2.1") as http:
        assert (await http.get("/", headers={"x-api-key": old.text})).status_code == 401
        await ground.issued.refresh()
        assert (await http.get("/", headers={"x-api-key": old.text})).json() == "globex"
        rotated = await ground.services.keys.rotate(ACTOR, old.kid)
        for text in (old.text, rotated.token):
            assert (await http.get("/", headers={"x-api-key": text})).json() == "globex"
    assert ground.store.secrets.is_tagged(type(old)(old.kid, rotated.token))


async def test_a_whole_gateway_is_protected(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers are refused on both ports while the store answers nobody, and counted together."""

    async def away(repository: object, kid: str) -> None:
        raise StoreUnavailable

    async with real_gateway(settings) as real:
        monkeypatch.setattr(SqlKeys, "find", away)
        monkeypatch.setattr(SqlAdminTokens, "find", away)
        statuses = []
        for number in range(BURST + 1):
            is_public = number % 2
            app = real.gateway.public if is_public else real.gateway.admin
            path, prefix = ("/v1/models", KEY_PREFIX) if is_public else (TENANTS, ADMIN_PREFIX)
            async with from_address(app, "192.0.2.1") as http:
                answer = await http.get(path, headers={"x-api-key": new_token(prefix).text})
            statuses.append(answer.status_code)
    assert statuses == [401] * BURST + [429]
