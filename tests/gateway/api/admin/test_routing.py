"""The admin API over HTTP, in process, on a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import httpx
import pytest

from gateway.store import Store
from tests.gateway.admin_app import admin_app, admin_client, declared_routes
from tests.gateway.fake_scheduling import FakeModel, FakeService

pytestmark = pytest.mark.anyio


@pytest.fixture
def model() -> FakeModel:
    """What the scheduler's routes show and set."""
    return FakeModel("sim", FakeService())


@pytest.fixture
async def stranger(store: Store, model: FakeModel) -> AsyncIterator[httpx.AsyncClient]:
    """Talk to the admin API without a token."""
    async with admin_client(await admin_app(store, model=model)) as client:
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
    routes = await declared_routes(store)
    paths = {(method, route.path) for route in routes for method in route.methods or ()}
    paths = {(method, path) for method, path in paths if method != "HEAD"}
    assert len(paths) > 40
    for method, path in paths:
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


async def test_a_tenant_is_changed(admin: httpx.AsyncClient) -> None:
    """PATCH sets what it names and answers with the tenant; null takes a promise back."""
    url = "/admin/v1/tenants/acme"
    changed = await admin.patch(url, json={"weight": 3, "ttft_ms": 500, "max_gap_ms": 60})
    assert changed.status_code == 200
    promises = {"ttft_ms": 500.0, "tpot_ms": None, "max_gap_ms": 60.0}
    assert {"name": "acme", "weight": 3.0, **promises}.items() <= changed.json().items()
    changed = await admin.patch(url, json={"ttft_ms": None})
    assert changed.json()["ttft_ms"] is None
    assert (changed.json()["weight"], changed.json()["max_gap_ms"]) == (3.0, 60.0)
    assert changed.json() in (await admin.get("/admin/v1/tenants")).json()["data"]


async def test_a_weight_reaches_the_scheduler(
    admin: httpx.AsyncClient, model: FakeModel, store: Store
) -> None:
    """What waits of a tenant whose weight was changed goes by the new one."""
    assert store.first_start is not None
    await admin.patch("/admin/v1/tenants/acme", json={"weight": 3})
    tenant_id = str(store.first_start.keys[0].key.tenant_id)
    assert model.service.weights == {tenant_id: 3.0}


async def test_a_key_is_made_with_a_tier(admin: httpx.AsyncClient) -> None:
    """A key shows the best tier it may ask for; without one it is `default`."""
    made = await admin.post("/admin/v1/keys", json={"tenant": "acme", "max_tier": "priority"})
    assert made.json()["max_tier"] == "priority"
    made = await admin.post("/admin/v1/keys", json={"tenant": "acme"})
    assert made.json()["max_tier"] == "default"


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


async def test_a_scheduler_is_shown_and_set(
    admin: httpx.AsyncClient, model: FakeModel, store: Store
) -> None:
    """PUT answers with what is set, GET shows it with the state, tenants by their names."""
    assert store.first_start is not None
    tenant_id = str(store.first_start.keys[0].key.tenant_id)
    model.service.tenant_ids = (tenant_id,)
    url = "/admin/v1/scheduler"
    body = {"model": "sim", "policy": "fcfs", "composer": {"max_step_s": 0.05}}
    answer = await admin.put(url, json=body)
    assert answer.status_code == 200
    assert answer.json()["version"] == 1
    [put] = answer.json()["data"]
    assert (put["model"], put["policy"], put["preset"]) == ("sim", "fcfs", None)
    assert put["config"]["composer"]["max_step_s"] == 0.05
    model.service.step()
    whole = (await admin.get(url)).json()
    assert (whole["version"], whole["not_served"]) == (1, [])
    assert whole["changed_at"] is not None
    [shown] = whole["data"]
    [band] = shown.pop("state")["bands"]
    assert [(one["tenant"], one["weight"]) for one in band["tenants"]] == [("acme", 2.0)]
    assert shown == put
    assert (shown["set"], shown["problem"]) == (
        {"policy": "fcfs", "composer": {"max_step_s": 0.05}},
        None,
    )
    origins = shown["origins"]
    assert origins["fairness"]["policy"] == origins["composer"]["max_step_s"] == "operators"
    assert origins["composer"]["max_bypasses"] == "settings"
    # However many have work, so many are described, and none but those is looked up.
    model.service.tenant_ids = (tenant_id, *(str(UUID(int=n)) for n in range(600)))
    [shown] = (await admin.get(url)).json()["data"]
    [band] = shown["state"]["bands"]
    assert [one["tenant"] for one in band["tenants"]] == ["acme", *[None] * 499]


async def test_a_scheduler_is_set_in_one_version_and_reset(
    admin: httpx.AsyncClient, model: FakeModel
) -> None:
    """A stale change is shown what is there; DELETE goes back to the settings, once."""
    url = "/admin/v1/scheduler"
    assert (await admin.put(url, json={"policy": "fcfs", "version": 0})).status_code == 200
    stale = [
        await admin.put(url, json={"policy": "edf", "version": 0}),
        await admin.put(url, json={"policy": "edf"}, headers={"if-match": '"0"'}),
        await admin.delete(url, headers={"if-match": '"0"'}),
    ]
    for answer in stale:
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "version_conflict")
        current = answer.json()["current"]
        assert (current["version"], current["data"][0]["policy"]) == (1, "fcfs")
    for _ in range(2):
        reset = await admin.delete(url, params={"model": "sim"})
        assert (reset.status_code, reset.json()["version"]) == (200, 2)
        assert reset.json()["data"][0]["policy"] == "vtc"
    assert model.service.wanted == FakeService().config


@pytest.mark.changes_nothing
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
        ("POST", "/admin/v1/tenants", b'{"name": "a", "ttft_ms": 0}', 400, "ttft_ms"),
        ("PATCH", "/admin/v1/tenants/nobody", b'{"weight": 1}', 404, "tenant"),
        ("PATCH", "/admin/v1/tenants/%00", b'{"weight": 1}', 404, "tenant"),
        ("PATCH", "/admin/v1/tenants/acme", b'{"weight": null}', 400, "weight"),
        ("PATCH", "/admin/v1/tenants/acme", b'{"weight": -1}', 400, "weight"),
        ("PATCH", "/admin/v1/tenants/acme", b'{"max_gap_ms": 0}', 400, "max_gap_ms"),
        ("PATCH", "/admin/v1/tenants/acme", b'{"name": "b"}', 400, "name"),
        ("POST", "/admin/v1/keys", b'{"tenant": "acme", "max_tier": "batch"}', 400, "max_tier"),
        ("POST", "/admin/v1/keys", b'{"tenant": "nobody"}', 404, "tenant"),
        ("POST", "/admin/v1/keys", b'{"tenant": "a\\u0000"}', 404, "tenant"),
        ("POST", "/admin/v1/keys", b'{"tenant": "acme", "expires_in_s": 0}', 400, "expires_in_s"),
        ("GET", "/admin/v1/keys?tenant=nobody", b"", 404, "tenant"),
        ("GET", "/admin/v1/keys?tenants=acme", b"", 400, "tenants"),
        ("DELETE", "/admin/v1/keys/unknown", b"", 404, "key_id"),
        ("DELETE", "/admin/v1/keys/%00", b"", 404, "key_id"),
        ("PUT", "/admin/v1/scheduler", b'{"policy": "nope"}', 400, "policy"),
        ("PUT", "/admin/v1/scheduler", b'{"preset": "nope"}', 400, "preset"),
        ("PUT", "/admin/v1/scheduler", b'{"composer": {"x": 1}}', 400, "composer.x"),
        ("PUT", "/admin/v1/scheduler", b'{"model": "nope"}', 404, "model"),
        ("PUT", "/admin/v1/scheduler", b'{"model": 5}', 400, "model"),
        ("PUT", "/admin/v1/scheduler", b"[]", 400, None),
        ("PUT", "/admin/v1/scheduler", b'{"version": "1"}', 400, "version"),
        ("DELETE", "/admin/v1/scheduler?model=nope", b"", 404, "model"),
        ("DELETE", "/admin/v1/scheduler?all=1", b"", 400, "all"),
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
