"""The admin API of keys: scopes, changes, rotations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from gateway.store import Store
from tests.gateway.admin_app import admin_app, admin_client

pytestmark = pytest.mark.anyio

URL = "/admin/v1/keys"


@pytest.fixture
async def admin(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """Talk to the admin API as an owner."""
    assert store.first_start is not None
    async with admin_client(await admin_app(store), store.first_start.admin_token) as client:
        yield client


async def make(admin: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    made = await admin.post(URL, json={"tenant": "acme", **fields})
    assert made.status_code == 201, made.text
    key: dict[str, Any] = made.json()
    return key


async def test_a_key_shows_what_it_is_held_to(admin: httpx.AsyncClient) -> None:
    """Models, networks and rights as they were given, or as they are without a word."""
    scopes = {
        "max_tier": "flex",
        "models": ["big", "org/small"],
        "cidrs": ["10.0.0.0/8", "2001:db8::/32"],
        "allows_batch": False,
        "admin_read": True,
    }
    held = await make(admin, **scopes)
    assert scopes.items() <= held.items()
    free = await make(admin)
    open_to_all = {"models": None, "cidrs": None, "allows_batch": True, "admin_read": False}
    assert open_to_all.items() <= free.items()
    for name in ("id", "kid"):
        shown = (await admin.get(f"{URL}/{held[name]}")).json()
        assert shown == {field: value for field, value in held.items() if field != "key"}


async def test_a_key_is_changed(admin: httpx.AsyncClient) -> None:
    """PATCH sets what it names, null takes a bound away, and the rest stays."""
    key = await make(admin, models=["a"], cidrs=["10.0.0.0/8"])
    url = f"{URL}/{key['kid']}"
    changed = (await admin.patch(url, json={"name": "n", "models": None})).json()
    assert (changed["name"], changed["models"], changed["cidrs"]) == ("n", None, ["10.0.0.0/8"])
    changed = (await admin.patch(url, json={"max_tier": "priority", "admin_read": True})).json()
    assert (changed["max_tier"], changed["admin_read"], changed["version"]) == ("priority", True, 3)
    assert (await admin.patch(url, json={})).json() == changed


async def test_a_rotation_shows_the_new_token_and_the_old_ones_end(
    admin: httpx.AsyncClient,
) -> None:
    """The same key, another secret; a day of grace unless told; the list shows the end."""
    key = await make(admin)
    url = f"{URL}/{key['kid']}"
    before = datetime.now(UTC)
    rotated = (await admin.post(f"{url}/rotate")).json()
    assert rotated["key"].startswith(f"sluice_live_{key['kid']}")
    assert rotated["key"] != key["key"]
    assert (rotated["id"], rotated["kid"]) == (key["id"], key["kid"])
    grace = datetime.fromisoformat(rotated["old_secret_expires_at"]) - before
    assert timedelta(days=1) <= grace < timedelta(days=1, minutes=5)
    assert (await admin.get(url)).json()["old_secret_expires_at"] == (
        rotated["old_secret_expires_at"]
    )
    rotated = (await admin.post(f"{url}/rotate", json={"grace_s": 0})).json()
    assert rotated["old_secret_expires_at"] is None


async def test_a_grace_ends_with_its_key(admin: httpx.AsyncClient) -> None:
    """An old secret does not outlive the key that it is of."""
    key = await make(admin, expires_in_s=60)
    rotated = (await admin.post(f"{URL}/{key['kid']}/rotate")).json()
    assert rotated["old_secret_expires_at"] == key["expires_at"] == rotated["expires_at"]


async def test_a_revoked_key_is_not_rotated(admin: httpx.AsyncClient) -> None:
    """That is a conflict; a dead key stays dead."""
    key = await make(admin)
    await admin.delete(f"{URL}/{key['kid']}")
    assert (await admin.post(f"{URL}/{key['kid']}/rotate")).status_code == 409


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", "", {"tenant": "acme", "models": []}, 400, "models"),
        ("POST", "", {"tenant": "acme", "models": "a"}, 400, "models"),
        ("POST", "", {"tenant": "acme", "models": [1]}, 400, "models"),
        ("POST", "", {"tenant": "acme", "cidrs": ["10.0.0.1/8"]}, 400, "cidrs"),
        ("POST", "", {"tenant": "acme", "allows_batch": None}, 400, "allows_batch"),
        ("PATCH", "/{kid}", {"cidrs": ["x"]}, 400, "cidrs"),
        ("PATCH", "/{kid}", {"name": "A b"}, 400, "name"),
        ("PATCH", "/{kid}", {"name": None}, 400, "name"),
        ("PATCH", "/{kid}", {"tenant": "globex"}, 400, "tenant"),
        ("PATCH", "/{kid}", {"expires_in_s": 5}, 400, "expires_in_s"),
        ("PATCH", "/nothing", {"name": "n"}, 404, "key_id"),
        ("GET", "/nothing", None, 404, "key_id"),
        ("POST", "/nothing/rotate", None, 404, "key_id"),
        ("POST", "/{kid}/rotate", {"grace_s": -1}, 400, "grace_s"),
        ("POST", "/{kid}/rotate", {"grace_s": 604_801}, 400, "grace_s"),
        ("POST", "/{kid}/rotate", {"grace_s": "1h"}, 400, "grace_s"),
        ("POST", "/{kid}/rotate", {"grace": 5}, 400, "grace"),
    ],
)
async def test_bad_input_is_a_clear_error(
    admin: httpx.AsyncClient, method: str, path: str, body: Any, status: int, param: str
) -> None:
    """Every refusal has OpenAI's shape and names the field; the key stays as it was."""
    key = await make(admin)
    answer = await admin.request(method, URL + path.format(kid=key["kid"]), json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"].partition("[")[0] == param
    assert (await admin.get(f"{URL}/{key['kid']}")).json()["version"] == 1
