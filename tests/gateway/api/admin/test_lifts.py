"""A tenant's owner who wants more than operators have set, by every route that is open to it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from gateway.domain.admin import AdminRole
from gateway.settings import Settings
from gateway.store import Store
from tests.gateway.admin_app import admin_app
from tests.gateway.api.real_gateway import RealGateway, real_gateway

pytestmark = pytest.mark.anyio

MODEL = "sluice-demo"
HELD = {"max_tier": "flex", "models": [MODEL], "cidrs": ["10.0.0.0/8"], "allows_batch": False}
LIMITS = {"rpm": 100, "budget_nano_usd": 10**9}
CEILINGS = {"max_tier": "flex", "models": [MODEL], "cidrs": ["10.0.0.0/8", "127.0.0.1/32"]}


@pytest.fixture
async def app(store: Store) -> ASGIApp:
    return await admin_app(store)


@pytest.fixture
def owner(app: ASGIApp, store: Store) -> httpx.AsyncClient:
    assert store.first_start is not None
    return _client(app, store.first_start.admin_token)


@pytest.fixture
async def operator(app: ASGIApp, owner: httpx.AsyncClient) -> httpx.AsyncClient:
    return await _admin(app, owner, AdminRole.OPERATOR)


@pytest.fixture
async def tenant_owner(app: ASGIApp, owner: httpx.AsyncClient) -> httpx.AsyncClient:
    return await _admin(app, owner, AdminRole.TENANT_OWNER, "acme")


@pytest.fixture
async def held(operator: httpx.AsyncClient) -> str:
    """Have an operator make a key of acme that is held to much; return its path."""
    made = await _ok(operator.post("/admin/v1/keys", json={"tenant": "acme", **HELD}), 201)
    path = f"/admin/v1/keys/{made['kid']}"
    assert sorted(made["operator_set"]) == sorted(HELD)
    await _ok(operator.put(_quotas(path), json=LIMITS))
    return path


KEY_LIFTS: list[dict[str, Any]] = [
    {"max_tier": "priority"},
    {"max_tier": "default"},
    {"models": None},
    {"models": [MODEL, "other"]},
    {"cidrs": None},
    {"cidrs": ["0.0.0.0/0"]},
    {"allows_batch": True},
    {"name": "new", "models": None},
]


@pytest.mark.parametrize("is_rotated", [False, True], ids=["as made", "rotated"])
async def test_what_an_operator_holds_of_a_key_stays(
    operator: httpx.AsyncClient, tenant_owner: httpx.AsyncClient, held: str, is_rotated: bool
) -> None:
    """Each lift of a restriction is a 403 that names it, and the key is what it was; its name, and
    what changes nothing, is the owner's to set, and a new secret takes no mark away.
    """
    if is_rotated:
        await _ok(tenant_owner.post(f"{held}/rotate"))
    before = (await tenant_owner.get(held)).json()
    for lift in KEY_LIFTS:
        answer = await tenant_owner.patch(held, json=lift)
        assert answer.status_code == 403, lift
        error = answer.json()["error"]
        assert error["code"] == "set_by_operator"
        assert error["param"] in HELD
    assert (await tenant_owner.get(held)).json() == before
    await _ok(tenant_owner.patch(held, json={"name": "ours", **HELD}))
    lifted = await _ok(operator.patch(held, json={"models": None}))
    assert sorted(lifted["operator_set"]) == ["allows_batch", "cidrs", "max_tier"]
    await _ok(tenant_owner.patch(held, json={"models": ["a"]}))
    await _ok(tenant_owner.patch(held, json={"models": None}))


LIMIT_LIFTS: list[tuple[str, str, dict[str, Any] | None]] = [
    ("PUT", "", {}),
    ("PUT", "", {"rpm": 100}),
    ("PUT", "", {**LIMITS, "rpm": None}),
    ("PATCH", "", {"budget_nano_usd": None}),
    ("PATCH", "", {"budget_nano_usd": 10**12}),
    ("PATCH", "", {"budget_hard": False}),
    ("PATCH", "", {"budget_window": "day"}),
    ("PATCH", "", {"rpm": 101}),
    ("PUT", "/override", {"rpm": 10_000, "ends_in_s": 60}),
    ("PUT", "/override", {"budget_hard": False, "ends_in_s": 60}),
    ("PUT", "/override", {"budget_window": "day", "ends_in_s": 60}),
]


async def test_limits_that_an_operator_holds_of_a_key_stay(
    tenant_owner: httpx.AsyncClient, held: str
) -> None:
    """Neither set, nor taken back, nor covered for a while; the owner may add limits of its own."""
    url = _quotas(held)
    for method, end, body in LIMIT_LIFTS:
        answer = await tenant_owner.request(method, url + end, json=body)
        assert answer.status_code == 403, (method, end, body)
        assert answer.json()["error"]["code"] == "set_by_operator"
    state = (await tenant_owner.get(url)).json()
    assert state["operator_set"] == ["budget_hard", "budget_nano_usd", "budget_window", "rpm"]
    assert {name: state["effective"][name] for name in LIMITS} == LIMITS
    await _ok(tenant_owner.patch(url, json={"concurrency": 2}))
    await _ok(tenant_owner.put(url, json={**LIMITS, "concurrency": 3}))
    await _ok(tenant_owner.put(f"{url}/override", json={"concurrency": 4, "ends_in_s": 60}))
    await _ok(tenant_owner.patch(url, json={"concurrency": None}))
    await _ok(tenant_owner.delete(f"{url}/override"))


async def test_an_operator_holds_what_it_names(
    operator: httpx.AsyncClient, tenant_owner: httpx.AsyncClient, held: str
) -> None:
    """One more limit leaves the others held; one that is taken back is the owner's again."""
    url = _quotas(held)
    await _ok(operator.patch(url, json={"concurrency": 3}))
    state = await _ok(operator.patch(url, json={"budget_nano_usd": None}))
    assert state["operator_set"] == ["concurrency", "rpm"]
    for limits in ({"rpm": 101}, {"concurrency": None}):
        assert (await tenant_owner.patch(url, json=limits)).status_code == 403
    await _ok(tenant_owner.patch(url, json={"budget_nano_usd": 5}))
    await _ok(tenant_owner.patch(url, json={"budget_nano_usd": 6}))
    # What is an owner's becomes an operator's by being set again.
    state = await _ok(operator.patch(url, json={"budget_nano_usd": 6}))
    assert "budget_nano_usd" in state["operator_set"]


async def test_an_operators_override_stays(
    owner: httpx.AsyncClient, tenant_owner: httpx.AsyncClient, held: str
) -> None:
    """What an operator has laid over a key's limits is not replaced, and not taken away."""
    url = f"{_quotas(held)}/override"
    await _ok(owner.put(url, json={"concurrency": 1, "ends_in_s": 60}))
    replaced = await tenant_owner.put(url, json={"output_tpm": 5, "ends_in_s": 60})
    cleared = await tenant_owner.delete(url)
    for answer in (replaced, cleared):
        assert (answer.status_code, answer.json()["error"]["param"]) == (403, "override")
    assert (await tenant_owner.get(_quotas(held))).json()["effective"]["concurrency"] == 1


async def test_an_override_laid_before_covers_nothing_of_an_operators(
    owner: httpx.AsyncClient, tenant_owner: httpx.AsyncClient
) -> None:
    """A limit that an operator sets holds at once, though the owner's override goes on."""
    made = await _ok(tenant_owner.post("/admin/v1/keys", json={"tenant": "acme"}), 201)
    url = f"/admin/v1/quotas/key/{made['kid']}"
    over = {"rpm": 10_000, "concurrency": 9, "ends_in_s": 3600}
    await _ok(tenant_owner.put(f"{url}/override", json=over))
    await _ok(owner.patch(url, json={"rpm": 5}))
    effective = (await tenant_owner.get(url)).json()["effective"]
    assert (effective["rpm"], effective["concurrency"]) == (5, 9)


ABOVE: list[tuple[dict[str, Any], str]] = [
    ({"max_tier": "priority"}, "max_tier"),
    ({"max_tier": "default"}, "max_tier"),
    ({"models": [MODEL, "other"]}, "models"),
    ({"cidrs": ["10.0.0.0/7"]}, "cidrs"),
    ({"cidrs": ["10.1.0.0/16", "192.168.0.0/16"]}, "cidrs"),
    ({"cidrs": ["::/0"]}, "cidrs"),
]


async def test_a_key_above_its_tenants_ceilings_is_refused(
    owner: httpx.AsyncClient, tenant_owner: httpx.AsyncClient
) -> None:
    """A new key and a changed one, an owner's and an operator's: 400 that names the field."""
    await _ok(owner.patch("/admin/v1/tenants/acme", json=CEILINGS))
    mine = await _ok(tenant_owner.post("/admin/v1/keys", json={"tenant": "acme"}), 201)
    assert mine["max_tier"] == "flex"
    both = [(admin, *above) for admin in (tenant_owner, owner) for above in ABOVE]
    for admin, fields, param in both:
        made = await admin.post("/admin/v1/keys", json={"tenant": "acme", **fields})
        changed = await admin.patch(f"/admin/v1/keys/{mine['kid']}", json=fields)
        for answer in (made, changed):
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert (error["code"], error["param"]) == ("above_ceiling", param)
    inside = {"models": [MODEL], "cidrs": ["10.2.0.0/16", "127.0.0.1"], "max_tier": "flex"}
    await _ok(tenant_owner.patch(f"/admin/v1/keys/{mine['kid']}", json=inside))


async def test_a_lowered_ceiling_holds_for_keys_that_are_there(settings: Settings) -> None:
    """A key of priority, any model and any address, used a moment ago, is held from its next use;
    taken back, the key is what it was.
    """
    async with real_gateway(settings) as real:
        free = {"tenant": "acme", "max_tier": "priority", "admin_read": True}
        key = (await _ok(real.owner.post("/admin/v1/keys", json=free), 201))["key"]
        tenant = "/admin/v1/tenants/acme"
        assert await _tier(real, key) == "priority"
        await _ok(real.owner.patch(tenant, json={"max_tier": "flex"}))
        assert await _tier(real, key) == "flex"
        await _ok(real.owner.patch(tenant, json={"models": ["other"]}))
        refused = await _complete(real, key)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")
        assert (await _public(real, key).get("/v1/models")).json()["data"] == []
        await _ok(real.owner.patch(tenant, json={"models": None, "cidrs": ["10.0.0.0/8"]}))
        assert (await _complete(real, key)).status_code == 403
        assert (await real.admin(key).get("/admin/v1/keys")).status_code == 403
        await _ok(real.owner.patch(tenant, json={"cidrs": None, "max_tier": "priority"}))
        assert await _tier(real, key) == "priority"
        assert (await real.admin(key).get("/admin/v1/keys")).status_code == 200


async def test_a_tenant_has_so_many_live_keys(
    owner: httpx.AsyncClient, tenant_owner: httpx.AsyncClient
) -> None:
    """One more is refused to anybody, until one is revoked; those beyond a lowered ceiling stay."""
    await _ok(owner.patch("/admin/v1/tenants/acme", json={"max_keys": 2}))
    second = await _ok(tenant_owner.post("/admin/v1/keys", json={"tenant": "acme"}), 201)
    for admin in (tenant_owner, owner):
        refused = await admin.post("/admin/v1/keys", json={"tenant": "acme"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "above_ceiling")
    await _ok(tenant_owner.delete(f"/admin/v1/keys/{second['kid']}"))
    third = await _ok(tenant_owner.post("/admin/v1/keys", json={"tenant": "acme"}), 201)
    await _ok(owner.patch("/admin/v1/tenants/acme", json={"max_keys": 0}))
    assert (await _ok(owner.get(f"/admin/v1/keys/{third['kid']}")))["status"] == "active"
    other = await owner.post("/admin/v1/keys", json={"tenant": "globex"})
    assert other.status_code == 201


@pytest.mark.parametrize(("method", "end"), [("PUT", ""), ("PATCH", ""), ("PUT", "/override")])
async def test_a_keys_limits_are_not_set_above_its_tenants(
    owner: httpx.AsyncClient, tenant_owner: httpx.AsyncClient, method: str, end: str
) -> None:
    """What would not count is told, as far as it can be compared; what is below is set."""
    limits = {"rpm": 50, "budget_nano_usd": 100, "budget_window": "day"}
    await _ok(owner.put("/admin/v1/quotas/tenant/acme", json=limits))
    key = await _ok(tenant_owner.post("/admin/v1/keys", json={"tenant": "acme"}), 201)
    url = f"/admin/v1/quotas/key/{key['kid']}{end}"
    more = {"ends_in_s": 60} if end else {}
    for above in ({"rpm": 51}, {"budget_nano_usd": 101, "budget_window": "day"}):
        answer = await tenant_owner.request(method, url, json={**above, **more})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "above_ceiling"
    fits = {"rpm": 50, "output_tpm": 7, "budget_nano_usd": 101, "budget_window": "month", **more}
    await _ok(tenant_owner.request(method, url, json=fits))


async def test_ceilings_are_in_the_log(owner: httpx.AsyncClient, held: str) -> None:
    """What an operator set, of a tenant and of a key, is told with the change."""
    await _ok(owner.patch("/admin/v1/tenants/acme", json={"max_keys": 7}))
    told = (await _ok(owner.get("/admin/v1/audit")))["data"]
    by_action = {record["action"]: record for record in reversed(told)}
    assert by_action["tenant.update"]["before"]["max_keys"] is None
    assert by_action["tenant.update"]["after"]["max_keys"] == 7
    assert sorted(by_action["key.create"]["after"]["operator_set"]) == sorted(HELD)
    assert "rpm" in by_action["quota.set"]["after"]["operator_set"]


NO_CEILINGS: list[tuple[dict[str, Any], str]] = [
    ({"models": []}, "models"),
    ({"cidrs": ["10.0.0.1/8"]}, "cidrs"),
    ({"max_keys": -1}, "max_keys"),
    ({"max_tier": "batch"}, "max_tier"),
    ({"max_tier": None}, "max_tier"),
]


async def test_a_ceiling_that_is_none_is_refused(owner: httpx.AsyncClient) -> None:
    """A bad value is a clear error for a new tenant and for one that is there."""
    for fields, param in NO_CEILINGS:
        made = await owner.post("/admin/v1/tenants", json={"name": "new", **fields})
        changed = await owner.patch("/admin/v1/tenants/acme", json=fields)
        for answer in (made, changed):
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_tenant_is_made_with_ceilings(
    owner: httpx.AsyncClient, tenant_owner: httpx.AsyncClient
) -> None:
    """They are there from its first key on; its owner sees its own, and sets none."""
    body = {"name": "new", **CEILINGS, "max_keys": 1}
    made = await _ok(owner.post("/admin/v1/tenants", json=body), 201)
    assert {name: made[name] for name in CEILINGS} == CEILINGS
    await _ok(owner.post("/admin/v1/keys", json={"tenant": "new"}), 201)
    assert (await owner.post("/admin/v1/keys", json={"tenant": "new"})).status_code == 400
    assert (await _ok(tenant_owner.get("/admin/v1/tenants/acme")))["max_keys"] is None
    lift = await tenant_owner.patch("/admin/v1/tenants/acme", json={"max_keys": 9})
    assert lift.status_code == 403


def _quotas(key_path: str) -> str:
    return key_path.replace("/keys/", "/quotas/key/")


async def _ok(asked: Any, status: int = 200) -> Any:  # an answer's JSON
    answer = await asked
    assert answer.status_code == status, answer.text
    return answer.json()


async def _tier(real: RealGateway, key: str) -> str:
    answer = await _complete(real, key)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["service_tier"])


async def _complete(real: RealGateway, key: str) -> httpx.Response:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 1,
        "service_tier": "priority",
    }
    return await _public(real, key).post("/v1/chat/completions", json=body)


def _public(real: RealGateway, key: str) -> httpx.AsyncClient:
    return _client(real.gateway.public, key)


def _client(app: ASGIApp, token: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False),
        base_url="http://test",
        headers={"authorization": f"Bearer {token}"},
    )


async def _admin(
    app: ASGIApp, owner: httpx.AsyncClient, role: AdminRole, tenant: str | None = None
) -> httpx.AsyncClient:
    body = {"name": "test", "role": role.value, "tenant": tenant}
    return _client(app, (await _ok(owner.post("/admin/v1/tokens", json=body), 201))["token"])


async def test_only_operators_show_prompts_and_it_is_told(
    owner: httpx.AsyncClient, tenant_owner: httpx.AsyncClient
) -> None:
    """A tenant's own admins cannot, it is off until then, and each switch is in the log."""
    tenant = "/admin/v1/tenants/acme"
    assert (await _ok(tenant_owner.get(tenant)))["trace_prompts"] is False
    assert (await tenant_owner.patch(tenant, json={"trace_prompts": True})).status_code == 403
    assert (await owner.patch(tenant, json={"trace_prompts": "yes"})).status_code == 400
    await _ok(owner.patch(tenant, json={"trace_prompts": True}))
    assert (await _ok(tenant_owner.get(tenant)))["trace_prompts"] is True
    told = (await _ok(owner.get("/admin/v1/audit")))["data"]
    [record] = [record for record in told if record["action"] == "tenant.update"]
    assert (record["before"]["trace_prompts"], record["after"]["trace_prompts"]) == (False, True)
