"""What all of the admin API shares: pages of lists, versions of objects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.store import Store
from tests.gateway.admin_app import admin_app, admin_client

pytestmark = pytest.mark.anyio

LISTS = ("/tenants", "/keys", "/plans", "/prices?all=true", "/audit", "/tokens")


@pytest.fixture
async def admin(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """Talk to the admin API as an owner."""
    assert store.first_start is not None
    async with admin_client(await admin_app(store), store.first_start.admin_token) as client:
        yield client


async def grow(admin: httpx.AsyncClient, number: int) -> None:
    """Add one to every list."""
    for path, body in (
        ("/tenants", {"name": f"t{number}"}),
        ("/keys", {"tenant": "acme", "name": f"k{number}"}),
        ("/plans", {"name": f"p{number}"}),
        ("/prices", {"model": f"m{number}", "input_usd_per_mtok": 1, "output_usd_per_mtok": 2}),
        ("/tokens", {"name": f"o{number}", "role": "viewer"}),
    ):
        made = await admin.post(f"/admin/v1{path}", json=body)
        assert made.status_code == 201, made.text


async def test_a_tenants_own_people_get_shorter_pages(
    admin: httpx.AsyncClient, store: Store
) -> None:
    """A hundred rows at most, whatever they ask for; operators get what they ask for."""
    keys: dict[str, Any] = {f"k{number}": {} for number in range(101)}
    await admin.post("/admin/v1/apply", json={"tenants": {"acme": {"keys": keys}}})
    wanted = {"name": "acme-owner", "role": "tenant-owner", "tenant": "acme"}
    token = (await admin.post("/admin/v1/tokens", json=wanted)).json()["token"]
    async with admin_client(await admin_app(store), token) as tenant:
        for path in ("/keys", "/audit"):
            asked = {"tenant": "acme", "limit": 1000}
            page = (await tenant.get(f"/admin/v1{path}", params=asked)).json()
            assert (len(page["data"]), page["has_more"]) == (100, True)
            whole = (await admin.get(f"/admin/v1{path}", params=asked)).json()
            assert len(whole["data"]) > 101


@pytest.mark.parametrize("path", LISTS)
async def test_a_list_is_read_in_pages_that_hold_still(admin: httpx.AsyncClient, path: str) -> None:
    """What was there at the first page is seen once and in order, whatever comes meanwhile."""
    for number in range(5):
        await grow(admin, 2 * number)
    url = f"/admin/v1{path}"
    everything = (await admin.get(url, params={"limit": 1000})).json()
    assert (everything["has_more"], everything["next"]) == (False, None)
    seen: list[Any] = []
    params: dict[str, Any] = {"limit": 2}
    number = 1
    while True:
        page = (await admin.get(url, params=params)).json()
        assert 1 <= len(page["data"]) <= 2
        seen += page["data"]
        assert page["has_more"] == (page["next"] is not None)
        if page["next"] is None:
            break
        params["after"] = page["next"]
        await grow(admin, number)
        number += 2
    there = [one for one in seen if one in everything["data"]]
    assert there == everything["data"]
    assert len({repr(one) for one in seen}) == len(seen)


@pytest.mark.changes_nothing
@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize(
    "params",
    [
        *({"limit": text} for text in ("0", "1001", "-1", "x", "", "1.0", "٣", "9" * 5000)),
        *({"after": text} for text in ("", "x", "é", "bm8", "WzFd", "WyJhIl0", "W10", "A" * 999)),
        {"before": "x"},
        [("limit", "1"), ("limit", "1")],
    ],
    ids=str,
)
async def test_a_bad_page_is_refused(admin: httpx.AsyncClient, path: str, params: Any) -> None:
    """A limit out of bounds, a cursor that the list did not give, a parameter nobody knows."""
    answer = await admin.get(f"/admin/v1{path}", params=httpx.QueryParams(params))
    if params == {"after": "WyJhIl0"} and path in ("/tenants", "/plans"):
        assert answer.status_code == 200  # a name is all that these are ordered by
        return
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] in ("limit", "after", "before")


async def _objects(admin: httpx.AsyncClient) -> list[tuple[str, str, dict[str, Any]]]:
    await admin.post("/admin/v1/plans", json={"name": "gold"})
    key = (await admin.get("/admin/v1/keys")).json()["data"][0]["kid"]
    return [
        ("PATCH", "/tenants/acme", {"weight": 2}),
        ("PATCH", f"/keys/{key}", {"name": "n"}),
        ("PATCH", "/plans/gold", {"quota": {"rpm": 1}}),
        ("PUT", "/quotas/tenant/acme", {"rpm": 1}),
        ("PATCH", "/quotas/platform/-", {"rpm": 1}),
        ("PATCH", f"/quotas/key/{key}", {"rpm": 1}),
        ("PUT", "/quotas/organisation/-/override", {"rpm": 1, "ends_in_s": 60}),
    ]


@pytest.mark.parametrize("number", range(7))
async def test_a_change_is_made_to_the_version_it_names(
    admin: httpx.AsyncClient, number: int
) -> None:
    """To an older one it is refused, with what is there and what was sent; nothing changes."""
    method, path, body = (await _objects(admin))[number]
    url, shown = f"/admin/v1{path}", f"/admin/v1{path.removesuffix('/override')}"
    before = (await admin.get(shown)).json()
    body["version"] = before["version"] + 1
    refused = await admin.request(method, url, json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "version_conflict")
    assert set(refused.json()) == {"error", "current", "yours"}
    assert (refused.json()["current"], refused.json()["yours"]) == (before, body)
    assert (await admin.get(shown)).json() == before
    body["version"] = before["version"]
    made = await admin.request(method, url, json=body)
    assert (made.status_code, made.json()["version"]) == (200, before["version"] + 1)
    refused = await admin.request(method, url, json=body)
    assert refused.json()["current"] == made.json() == (await admin.get(shown)).json()
    del body["version"]
    assert (await admin.request(method, url, json=body)).status_code == 200


@pytest.mark.parametrize("number", range(7))
async def test_a_version_may_come_as_a_header(admin: httpx.AsyncClient, number: int) -> None:
    """`If-Match` says what `version` does; `*` is any, and the two may not differ."""
    method, path, body = (await _objects(admin))[number]
    url = f"/admin/v1{path}"
    version = (await admin.get(url.removesuffix("/override"))).json()["version"]

    async def status(header: str, **more: Any) -> int:
        headers = {"if-match": header}
        sent = {**body, **more}
        return (await admin.request(method, url, json=sent, headers=headers)).status_code

    assert await status(f'"{version + 1}"') == 409
    assert await status(f'"{version}"', version=version + 1) == 400
    assert await status("W/x") == 400
    assert await status(f'"{version}"') == 200
    assert await status(f'"{version}"') == 409
    assert await status("*") == 200
