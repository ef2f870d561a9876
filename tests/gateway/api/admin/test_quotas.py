"""The admin API of limits and plans."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from gateway.store import Store
from tests.gateway.admin_app import admin_app, admin_client

pytestmark = pytest.mark.anyio

NONE = dict.fromkeys(
    (
        *("rpm", "input_tpm", "output_tpm", "concurrency", "queued_tokens"),
        *("daily_tokens", "monthly_tokens", "budget_nano_usd", "budget_window", "budget_hard"),
    )
)


@pytest.fixture
async def admin(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """Talk to the admin API as an owner."""
    assert store.first_start is not None
    async with admin_client(await admin_app(store), store.first_start.admin_token) as client:
        yield client


@pytest.mark.parametrize("kind", ["platform", "organisation", "tenant", "key", "plan"])
async def test_limits_of_every_scope_are_set(admin: httpx.AsyncClient, kind: str) -> None:
    """PUT replaces them, PATCH sets those that it names; the answer says whose they are."""
    key = (await admin.get("/admin/v1/keys")).json()["data"][0]
    await admin.post("/admin/v1/plans", json={"name": "gold"})
    name = {"tenant": "acme", "key": key["kid"], "plan": "gold"}.get(kind, "-")
    url = f"/admin/v1/quotas/{kind}/{name}"
    empty = (await admin.get(url)).json()
    assert (empty["quota"], empty["override"], empty["effective"]) == (NONE, None, NONE)
    assert (empty["scope"]["kind"], empty["version"]) == (kind, 1 if kind == "plan" else 0)
    budget = {"budget_nano_usd": 5 * 10**9, "budget_window": "30d", "budget_hard": True}
    put = (await admin.put(url, json={"rpm": 5, "concurrency": 0, **budget})).json()
    assert put["quota"] == put["effective"] == NONE | {"rpm": 5, "concurrency": 0, **budget}
    assert put["version"] == empty["version"] + 1
    patched = (await admin.patch(url, json={"rpm": None, "input_tpm": 7})).json()
    assert patched["quota"] == NONE | {"concurrency": 0, "input_tpm": 7, **budget}
    assert (await admin.get(url)).json() == patched
    again = (await admin.put(url, json={"daily_tokens": 1})).json()
    assert again["quota"] == NONE | {"daily_tokens": 1}
    by_id = (await admin.get(f"/admin/v1/quotas/key/{key['id']}")).json()
    assert by_id["scope"] == {"kind": "key", "id": key["id"], "name": key["kid"]}


async def test_an_override_lies_over_for_a_while(admin: httpx.AsyncClient) -> None:
    """It shows with its end and reason, what holds has it on top, and it is taken back."""
    url = "/admin/v1/quotas/tenant/acme"
    await admin.put(url, json={"rpm": 5, "concurrency": 1})
    body = {"rpm": 50, "ends_in_s": 3600, "reason": "demo day"}
    laid = (await admin.put(f"{url}/override", json=body)).json()
    ends_at = datetime.fromisoformat(laid["override"].pop("ends_at"))
    assert timedelta(minutes=59) < ends_at - datetime.now(UTC) <= timedelta(hours=1)
    assert laid["override"] == NONE | {"rpm": 50, "reason": "demo day", "is_operators": False}
    assert laid["effective"] == NONE | {"rpm": 50, "concurrency": 1}
    assert laid["quota"] == NONE | {"rpm": 5, "concurrency": 1}
    stale = await admin.delete(f"{url}/override", headers={"if-match": '"1"'})
    assert (stale.status_code, stale.json()["current"]["version"]) == (409, 2)
    for _ in range(2):
        cleared = await admin.delete(f"{url}/override")
        assert cleared.status_code == 200
        assert (cleared.json()["override"], cleared.json()["version"]) == (None, 3)
    assert cleared.json()["effective"] == cleared.json()["quota"] == laid["quota"]


async def test_a_tenant_inherits_its_plan(admin: httpx.AsyncClient) -> None:
    """What the tenant leaves open is the plan's; a plan in use stays."""
    made = await admin.post("/admin/v1/plans", json={"name": "gold", "quota": {"rpm": 9}})
    assert made.status_code == 201
    assert made.json()["quota"] == NONE | {"rpm": 9}
    tenant = (await admin.patch("/admin/v1/tenants/acme", json={"plan": "gold"})).json()
    assert (tenant["plan"], tenant["version"]) == ("gold", 2)
    await admin.put("/admin/v1/quotas/tenant/acme", json={"concurrency": 2})
    shown = (await admin.get("/admin/v1/quotas/tenant/acme")).json()
    assert shown["quota"] == NONE | {"concurrency": 2}
    assert shown["effective"] == NONE | {"concurrency": 2, "rpm": 9}
    assert (await admin.delete("/admin/v1/plans/gold")).status_code == 409
    assert (await admin.patch("/admin/v1/tenants/acme", json={"plan": None})).status_code == 200
    stale = await admin.delete("/admin/v1/plans/gold", headers={"if-match": '"7"'})
    assert stale.json()["error"]["code"] == "version_conflict"
    assert (await admin.delete("/admin/v1/plans/gold")).json()["name"] == "gold"
    assert (await admin.get("/admin/v1/plans/gold")).status_code == 404
    assert (await admin.get("/admin/v1/quotas/plan/gold")).status_code == 404


async def test_a_plan_is_changed(admin: httpx.AsyncClient) -> None:
    """PATCH sets the limits that it names; so does the plan's own quota, in one count."""
    await admin.post("/admin/v1/plans", json={"name": "gold", "quota": {"rpm": 9}})
    url = "/admin/v1/plans/gold"
    changed = (await admin.patch(url, json={"quota": {"input_tpm": 5}})).json()
    assert (changed["quota"], changed["version"]) == (NONE | {"rpm": 9, "input_tpm": 5}, 2)
    await admin.patch("/admin/v1/quotas/plan/gold", json={"rpm": None})
    shown = (await admin.get(url)).json()
    assert (shown["quota"], shown["version"]) == (NONE | {"input_tpm": 5}, 3)
    assert shown in (await admin.get("/admin/v1/plans")).json()["data"]
    assert (await admin.post("/admin/v1/plans", json={"name": "gold"})).status_code == 409


@pytest.mark.changes_nothing
@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("PUT", "/quotas/tenant/acme", {"rpm": -1}, 400, "rpm"),
        ("PUT", "/quotas/tenant/acme", {"rpm": 1.5}, 400, "rpm"),
        ("PUT", "/quotas/tenant/acme", {"rpm": "5"}, 400, "rpm"),
        ("PUT", "/quotas/tenant/acme", {"rpm": True}, 400, "rpm"),
        ("PUT", "/quotas/tenant/acme", {"rpm": 10**30}, 400, "rpm"),
        ("PUT", "/quotas/tenant/acme", {"rps": 1}, 400, "rps"),
        ("PATCH", "/quotas/tenant/acme", {"budget_window": "year"}, 400, "budget_window"),
        ("PATCH", "/quotas/tenant/acme", {"budget_hard": 1}, 400, "budget_hard"),
        ("PATCH", "/quotas/tenant/acme", {"version": "1"}, 400, "version"),
        ("PUT", "/quotas/tenant/acme/override", {"rpm": 1}, 400, "ends_in_s"),
        ("PUT", "/quotas/tenant/acme/override", {"rpm": 1, "ends_in_s": 0}, 400, "ends_in_s"),
        ("PUT", "/quotas/tenant/acme/override", {"ends_in_s": 5, "reason": 5}, 400, "reason"),
        ("GET", "/quotas/tenant/nobody", None, 404, "tenant"),
        ("GET", "/quotas/key/nobody", None, 404, "key_id"),
        ("GET", "/quotas/plan/nobody", None, 404, "plan"),
        ("GET", "/quotas/platform/other", None, 404, "id"),
        ("GET", "/quotas/galaxy/-", None, 404, None),
        ("PUT", "/quotas/plan/gold/override", {"rpm": 1, "ends_in_s": 5}, 404, None),
        ("POST", "/plans", {"name": "A b"}, 400, "name"),
        ("POST", "/plans", {"name": "a", "quota": {"rpm": -1}}, 400, "rpm"),
        ("PATCH", "/plans/nobody", {"quota": {}}, 404, "plan"),
        ("PATCH", "/plans/gold", {"name": "b"}, 400, "name"),
        ("DELETE", "/plans/nobody", None, 404, "plan"),
        ("POST", "/tenants", {"name": "a", "plan": "nobody"}, 404, "plan"),
        ("PATCH", "/tenants/acme", {"plan": "A b"}, 404, "plan"),
    ],
)
async def test_bad_input_is_a_clear_error(
    admin: httpx.AsyncClient, method: str, path: str, body: Any, status: int, param: str | None
) -> None:
    """Every refusal has OpenAI's shape and names the field; nothing changes."""
    answer = await admin.request(method, f"/admin/v1{path}", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param
    assert (await admin.get("/admin/v1/quotas/tenant/acme")).json()["version"] == 0
    assert (await admin.get("/admin/v1/plans")).json()["data"] == []
