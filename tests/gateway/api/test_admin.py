"""The admin API over HTTP, in process, on a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.api.admin import admin_routes
from gateway.api.public import with_errors
from gateway.services.auth import AdminAuthenticator, Authenticator
from gateway.services.keys import KeyService
from gateway.services.tenants import TenantService
from gateway.store import Store

pytestmark = pytest.mark.anyio

ROUTES = [
    ("GET", "/admin/v1/tenants"),
    ("POST", "/admin/v1/tenants"),
    ("GET", "/admin/v1/keys"),
    ("POST", "/admin/v1/keys"),
    ("DELETE", "/admin/v1/keys/anything"),
]


@pytest.fixture
async def stranger(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """Talk to the admin API without a token."""
    auth = Authenticator(store.keys, store.secrets)
    tenants = TenantService(store.tenants, store.organisations)
    keys = KeyService(store.keys, tenants, store.secrets, auth, store.auth_epoch)
    admin_auth = AdminAuthenticator(store.admin_tokens, store.secrets)
    app = with_errors(admin_routes(tenants, keys, admin_auth))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        yield client


@pytest.fixture
async def admin(stranger: httpx.AsyncClient, store: Store) -> httpx.AsyncClient:
    """Talk to the admin API as an admin."""
    assert store.first_start is not None
    stranger.headers["authorization"] = f"Bearer {store.first_start.admin_token}"
    return stranger


async def test_every_route_wants_an_admin_token(stranger: httpx.AsyncClient, store: Store) -> None:
    """Without a token, with nonsense, and with a tenant's key: one 401 body on every route."""
    assert store.first_start is not None
    key = store.first_start.keys[0].token
    bodies = set()
    for method, path in ROUTES:
        for header in (None, "Bearer x", f"Bearer {key}", "Basic eDp5", "Bearer"):
            headers = {} if header is None else {"authorization": header}
            answer = await stranger.request(method, path, headers=headers, content=b"{")
            assert answer.status_code == 401
            bodies.add(answer.text)
    assert len(bodies) == 1


async def test_tenants_are_made_and_listed(admin: httpx.AsyncClient) -> None:
    """A tenant that was made is in the list."""
    made = await admin.post("/admin/v1/tenants", json={"name": "research", "weight": 2})
    assert made.status_code == 201
    assert {"name": "research", "weight": 2.0}.items() <= made.json().items()
    listed = (await admin.get("/admin/v1/tenants")).json()["data"]
    assert [tenant["name"] for tenant in listed] == ["acme", "globex", "research"]
    assert made.json() in listed


async def test_a_keys_token_is_shown_once(admin: httpx.AsyncClient) -> None:
    """The answer that makes a key has its token and is not cached; the list has none."""
    made = await admin.post("/admin/v1/keys", json={"tenant": "acme", "expires_in_s": 90})
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    issued = made.json()
    assert issued["key"].startswith("sluice_live_" + issued["kid"])
    listed = await admin.get("/admin/v1/keys", params={"tenant": "acme"})
    assert issued["key"][-38:] not in listed.text
    [shown] = [key for key in listed.json()["data"] if key["id"] == issued["id"]]
    assert shown == {name: value for name, value in issued.items() if name != "key"}
    assert {key["tenant"] for key in listed.json()["data"]} == {"acme"}


async def test_a_key_is_revoked(admin: httpx.AsyncClient) -> None:
    """DELETE answers with the key as it is now, and again with the same."""
    made = (await admin.post("/admin/v1/keys", json={"tenant": "acme"})).json()
    for name in ("id", "kid"):
        answer = await admin.delete(f"/admin/v1/keys/{made[name]}")
        assert (answer.status_code, answer.json()["status"]) == (200, "revoked")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", "/admin/v1/tenants", b"{}", 400, "name"),
        ("POST", "/admin/v1/tenants", b'{"name": "acme"}', 409, "name"),
        ("POST", "/admin/v1/tenants", b'{"name": "A"}', 400, "name"),
        ("POST", "/admin/v1/tenants", b'{"name": "a\\u0000"}', 400, "name"),
        ("POST", "/admin/v1/tenants", b'{"name": "a", "weight": 0}', 400, "weight"),
        ("POST", "/admin/v1/tenants", b'{"name": "a", "weight": 1e999}', 400, "weight"),
        ("POST", "/admin/v1/tenants", b'{"name": "a", "weight": "1"}', 400, "weight"),
        ("POST", "/admin/v1/tenants", b'{"name": "a", "id": "x"}', 400, "id"),
        ("POST", "/admin/v1/keys", b'{"tenant": "nobody"}', 404, "tenant"),
        ("POST", "/admin/v1/keys", b'{"tenant": "a\\u0000"}', 404, "tenant"),
        ("POST", "/admin/v1/keys", b'{"tenant": "acme", "expires_in_s": 0}', 400, "expires_in_s"),
        ("GET", "/admin/v1/keys?tenant=nobody", b"", 404, "tenant"),
        ("GET", "/admin/v1/keys?tenants=acme", b"", 400, "tenants"),
        ("DELETE", "/admin/v1/keys/unknown", b"", 404, "key_id"),
        ("DELETE", "/admin/v1/keys/%00", b"", 404, "key_id"),
        ("POST", "/admin/v1/keys", b"", 400, None),
        ("POST", "/admin/v1/keys", b"\xff", 400, None),
        ("POST", "/admin/v1/keys", b"[" * 100_000, 400, None),
    ],
)
async def test_bad_input_is_a_clear_error(
    admin: httpx.AsyncClient, method: str, path: str, body: bytes, status: int, param: str | None
) -> None:
    """Every refusal has OpenAI's shape and names the field."""
    answer = await admin.request(method, path, content=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
