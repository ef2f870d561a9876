"""Another tenant's things are not there: every verb and object of the real admin API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.api.admin.routing import AdminOnly
from gateway.domain.admin import AdminRole
from gateway.settings import Settings
from tests.gateway.api.real_gateway import RealGateway, real_gateway

pytestmark = pytest.mark.anyio

ROLES = (AdminRole.TENANT_OWNER, AdminRole.TENANT_VIEWER)
# By the end of a path, a body that the route would take.
BODIES: dict[str, dict[str, Any]] = {
    "PATCH /keys/{key_id}": {"name": "mine-now"},
    "POST /keys/{key_id}/rotate": {"grace_s": 0},
    "PUT /quotas/key/{id}": {"rpm": 1},
    "PATCH /quotas/key/{id}": {"rpm": 1},
    "PUT /quotas/key/{id}/override": {"rpm": 1, "ends_in_s": 60},
    "PATCH /tenants/{name}": {"weight": 100},
    "PUT /quotas/tenant/{id}": {"rpm": 1},
    "PATCH /quotas/tenant/{id}": {"rpm": 1},
    "PUT /quotas/tenant/{id}/override": {"rpm": 1, "ends_in_s": 60},
}


@pytest.fixture
async def real(settings: Settings) -> AsyncIterator[RealGateway]:
    async with real_gateway(settings) as running:
        yield running


@pytest.mark.parametrize("role", ROLES)
async def test_another_tenants_object_is_as_one_that_is_not_there(
    real: RealGateway, role: AdminRole
) -> None:
    """On every route that names an object: 404 where the role may, 403 where not, never a hint.

    The answer is the same, to the byte, as for an id that nobody has; and nothing changes.
    """
    theirs = (await real.owner.get("/admin/v1/keys", params={"tenant": "acme"})).json()["data"][0]
    before = await _everything_of(real, "acme")
    client = real.admin(await real.token(role, "globex"))
    for method, route in real.routes:
        path = route.path
        if "{" not in path:
            continue
        body = BODIES.get(f"{method} {path.removeprefix('/admin/v1')}")
        for present, absent in (
            ("acme", "nobody"),
            (theirs["kid"], "A" * 12),
            (theirs["id"], "00000000-0000-0000-0000-00000000000a"),
        ):
            here = await client.request(method, _named(path, present), json=body)
            nowhere = await client.request(method, _named(path, absent), json=body)
            assert (here.status_code, here.content) == (nowhere.status_code, nowhere.content), path
            assert isinstance(route.app, AdminOnly)
            expected = 404 if role in route.app.allows else 403
            assert here.status_code == expected, (method, path)
    assert await _everything_of(real, "acme") == before


@pytest.mark.parametrize("role", ROLES)
async def test_another_tenant_is_not_there_to_be_named(real: RealGateway, role: AdminRole) -> None:
    """Neither in a query nor in a body, in the words used for a tenant that does not exist."""
    key = (await real.owner.get("/admin/v1/keys", params={"tenant": "acme"})).json()["data"][0]
    client = real.admin(await real.token(role, "globex"))

    async def both(method: str, path: str, here: str, nowhere: str, **more: Any) -> None:
        answers = []
        for name in (here, nowhere):
            sent = {
                one: {k: v.replace("?", name) for k, v in of.items()} for one, of in more.items()
            }
            answers.append(await client.request(method, f"/admin/v1{path}", **sent))
        assert answers[0].content == answers[1].content
        may = method == "GET" or role is AdminRole.TENANT_OWNER
        assert {answer.status_code for answer in answers} == {404 if may else 403}

    await both("GET", "/keys", "acme", "nobody", params={"tenant": "?"})
    await both("GET", "/audit", "acme", "nobody", params={"tenant": "?"})
    await both("GET", "/usage", "acme", "nobody", params={"tenant": "?"})
    await both("GET", "/usage", key["kid"], "A" * 12, params={"key": "?"})
    await both("POST", "/keys", "acme", "nobody", json={"tenant": "?", "name": "mine"})


@pytest.mark.parametrize("role", ROLES)
async def test_lists_hold_a_tenants_own_alone(real: RealGateway, role: AdminRole) -> None:
    """Tenants, keys and the audit log of one tenant, with and without its name."""
    client = real.admin(await real.token(role, "globex"))
    tenants = await _data(client, "/tenants")
    assert [tenant["name"] for tenant in tenants] == ["globex"]
    for params in ({}, {"tenant": "globex"}):
        keys = await _data(client, "/keys", **params)
        assert {key["tenant"] for key in keys} == {"globex"}
        records = await _data(client, "/audit", **params)
        assert {record["tenant_id"] for record in records} == {tenants[0]["id"]}
    everyone = await _data(real.owner, "/audit")
    assert len(everyone) > len(records)


async def test_a_tenants_owner_rules_its_keys_and_not_its_limits(real: RealGateway) -> None:
    """Keys are made, changed, limited, rotated and revoked; the tenant's own limits are not."""
    client = real.admin(await real.token(AdminRole.TENANT_OWNER, "globex"))
    made = await client.post("/admin/v1/keys", json={"tenant": "globex", "name": "mine"})
    assert made.status_code == 201
    key = f"/admin/v1/keys/{made.json()['kid']}"
    quota = f"/admin/v1/quotas/key/{made.json()['kid']}"
    assert (await client.patch(key, json={"name": "ours"})).json()["name"] == "ours"
    assert (await client.put(quota, json={"rpm": 5})).json()["effective"]["rpm"] == 5
    assert (await client.post(f"{key}/rotate")).status_code == 200
    assert (await client.delete(key)).json()["status"] == "revoked"
    assert (await client.get("/admin/v1/quotas/tenant/globex")).status_code == 200
    for method, path, body in (
        ("PUT", "/quotas/tenant/globex", {"rpm": 10**9}),
        ("PATCH", "/quotas/tenant/globex", {"rpm": 10**9}),
        ("PUT", "/quotas/tenant/globex/override", {"rpm": 10**9, "ends_in_s": 60}),
        ("PATCH", "/tenants/globex", {"weight": 100}),
        ("PATCH", "/tenants/globex", {"plan": None}),
        ("POST", "/tenants", {"name": "second"}),
        ("POST", "/tokens", {"name": "x", "role": "owner"}),
    ):
        refused = await client.request(method, f"/admin/v1{path}", json=body)
        assert refused.status_code == 403


async def test_a_key_with_admin_read_reads_its_tenant_from_its_networks(real: RealGateway) -> None:
    """It sees what a viewer of its tenant does, changes nothing, and only from where it may be."""
    body = {"tenant": "globex", "admin_read": True, "cidrs": ["127.0.0.0/8"]}
    made = (await real.owner.post("/admin/v1/keys", json=body)).json()
    client = real.admin(made["key"])
    assert [one["name"] for one in await _data(client, "/tenants")] == ["globex"]
    assert (await client.get("/admin/v1/tenants/acme")).status_code == 404
    assert (await client.delete(f"/admin/v1/keys/{made['kid']}")).status_code == 403
    await real.owner.patch(f"/admin/v1/keys/{made['kid']}", json={"cidrs": ["10.0.0.0/8"]})
    away = await client.get("/admin/v1/tenants")
    assert (away.status_code, away.json()["error"]["code"]) == (403, "permission_denied")


async def _everything_of(real: RealGateway, tenant: str) -> list[Any]:
    """Read a tenant, its keys, the limits of each, and what the audit log has of them."""
    keys = await _data(real.owner, "/keys", tenant=tenant)
    paths = [f"/tenants/{tenant}", f"/quotas/tenant/{tenant}"]
    paths += [f"/quotas/key/{key['kid']}" for key in keys]
    single = [(await real.owner.get(f"/admin/v1{path}")).json() for path in paths]
    return [keys, *single, await _data(real.owner, "/audit", tenant=tenant)]


async def _data(client: httpx.AsyncClient, path: str, **params: str) -> list[dict[str, Any]]:
    answer = await client.get(f"/admin/v1{path}", params=params)
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


def _named(path: str, name: str) -> str:
    start, _, rest = path.partition("{")
    return f"{start}{name}{rest.partition('}')[2]}"
