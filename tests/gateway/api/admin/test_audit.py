"""The admin API of the audit log and of admin tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from gateway.domain.admin import AuditHead
from gateway.store import Store
from gateway.store.database import Database
from tests.gateway.admin_app import admin_app, admin_client

pytestmark = pytest.mark.anyio

URL = "/admin/v1/audit"


@pytest.fixture
async def admin(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """Talk to the admin API as an owner."""
    assert store.first_start is not None
    async with admin_client(await admin_app(store), store.first_start.admin_token) as client:
        yield client


async def test_every_change_is_in_the_log(admin: httpx.AsyncClient) -> None:
    """Who, from where, in which request, and what it was before; what changed nothing is not."""
    made = await admin.post("/admin/v1/keys", json={"tenant": "acme", "name": "ci"})
    key = made.json()
    calls = [
        ("POST", "/tenants", {"name": "research"}),
        ("PATCH", "/tenants/acme", {"weight": 2}),
        ("PATCH", f"/keys/{key['kid']}", {"name": "ci2"}),
        ("POST", f"/keys/{key['kid']}/rotate", None),
        ("DELETE", f"/keys/{key['kid']}", None),
        ("POST", "/plans", {"name": "gold", "quota": {"rpm": 1}}),
        ("PATCH", "/plans/gold", {"quota": {"rpm": 2}}),
        ("DELETE", "/plans/gold", None),
        ("PUT", "/quotas/platform/-", {"rpm": 1}),
        ("PUT", "/quotas/tenant/acme/override", {"rpm": 1, "ends_in_s": 60}),
        ("DELETE", "/quotas/tenant/acme/override", None),
        ("POST", "/prices", {"model": "m", "input_usd_per_mtok": 1, "output_usd_per_mtok": 1}),
        ("POST", "/tokens", {"name": "ops", "role": "operator"}),
        ("PUT", "/scheduler", {"policy": "fcfs"}),
        ("DELETE", "/scheduler", None),
    ]
    answers = [await admin.request(m, f"/admin/v1{p}", json=body) for m, p, body in calls]
    assert {answer.status_code for answer in answers} <= {200, 201}
    # Neither what changes nothing nor what fails is told.
    await admin.patch("/admin/v1/tenants/acme", json={"weight": 2})
    await admin.delete(f"/admin/v1/keys/{key['kid']}")
    await admin.post("/admin/v1/tenants", json={"name": "acme"})
    records = (await admin.get(URL, params={"actor": "first"})).json()["data"][::-1]
    assert [record["action"] for record in records] == [
        *("key.create", "tenant.create", "tenant.update", "key.update", "key.rotate", "key.revoke"),
        *("plan.create", "plan.update", "plan.delete"),
        *("quota.set", "quota.override", "quota.clear_override"),
        *("price.create", "token.create", "scheduler.configure", "scheduler.reset"),
    ]
    for record, answer in zip(records, [made, *answers], strict=True):
        assert f"req_{record['request_id']}" == answer.headers["x-request-id"]
        assert (record["actor_role"], record["ip"]) == ("owner", "127.0.0.1")
    changed = records[2]
    assert (changed["before"]["weight"], changed["after"]["weight"]) == (1, 2)
    told = (await admin.get(URL)).text
    shown_once = [key["key"], answers[3].json()["key"], answers[12].json()["token"]]
    assert not [secret for secret in shown_once if secret[-38:] in told]


async def test_the_log_is_chosen_from(admin: httpx.AsyncClient) -> None:
    """By tenant, actor, action, kind of object and time."""
    await admin.patch("/admin/v1/tenants/acme", json={"weight": 2})
    everything = (await admin.get(URL)).json()["data"]
    at = everything[0]["at"]

    async def actions(**params: str) -> list[str]:
        data = (await admin.get(URL, params=params)).json()["data"]
        return [record["action"] for record in data]

    assert await actions(tenant="acme") == ["tenant.update", "key.create", "tenant.create"]
    assert await actions(actor="first") == ["tenant.update"]
    assert await actions(action="price.create") == ["price.create"]
    assert await actions(object_kind="token") == ["token.create"]
    assert await actions(**{"from": at}) == ["tenant.update"]
    assert len(await actions(to=at)) == len(everything) - 1
    for name, value in (("from", "now"), ("to", "x"), ("actor", "\x00"), ("who", "ann")):
        refused = await admin.get(URL, params={name: value})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


async def test_a_tenant_is_not_told_where_operators_are(
    admin: httpx.AsyncClient, store: Store
) -> None:
    """Of its own changes a tenant sees the addresses, of operators' what was done, and by whom."""
    wanted = {"name": "acme-owner", "role": "tenant-owner", "tenant": "acme"}
    made = (await admin.post("/admin/v1/tokens", json=wanted)).json()
    await admin.post("/admin/v1/keys", json={"tenant": "acme", "name": "theirs"})
    async with admin_client(await admin_app(store), made["token"]) as tenant:
        await tenant.post("/admin/v1/keys", json={"tenant": "acme", "name": "own"})
        told = (await tenant.get(URL, params={"action": "key.create"})).json()["data"]
    assert [(one["after"]["name"], one["actor"], one["ip"]) for one in told[:2]] == [
        ("own", "acme-owner", "127.0.0.1"),
        ("theirs", "first", None),
    ]
    known = (await admin.get(URL, params={"action": "key.create"})).json()["data"]
    assert [one["ip"] for one in known[:2]] == ["127.0.0.1", "127.0.0.1"]


async def test_the_chain_is_verified(admin: httpx.AsyncClient, owner: Database) -> None:
    """It holds, with its head to be kept elsewhere; the first record that does not is named."""
    verdict = (await admin.get(f"{URL}/verify")).json()
    newest = (await admin.get(URL)).json()["data"][0]
    assert verdict == {
        "ok": True,
        "seq": newest["seq"],
        "hash": newest["hash"],
        "broken_seq": None,
        "lost_seq": None,
        "unkeyed_seq": 0,
    }
    assert newest["is_keyed"] is True
    async with owner.as_itself() as connection:
        for statement in (
            "ALTER TABLE audit_log DISABLE TRIGGER append_only",
            "ALTER TABLE audit_log NO FORCE ROW LEVEL SECURITY",
            "UPDATE audit_log SET actor = 'nobody' WHERE seq = 3",
        ):
            await connection.execute(text(statement))
    verdict = (await admin.get(f"{URL}/verify")).json()
    assert (verdict["ok"], verdict["broken_seq"]) == (False, 3)


async def test_a_head_from_before_is_asked_for(admin: httpx.AsyncClient, store: Store) -> None:
    """One that was read stays in the chain; what never was, or is kept here and gone, is not."""
    head = (await admin.get(f"{URL}/head")).json()
    newest = (await admin.get(URL)).json()["data"][0]
    assert head == {name: newest[name] for name in ("seq", "hash", "at")}
    await admin.patch("/admin/v1/tenants/acme", json={"weight": 2})

    async def verified(named: str) -> tuple[bool, int | None]:
        verdict = (await admin.get(f"{URL}/verify", params={"head": named})).json()
        return verdict["ok"], verdict["lost_seq"]

    assert await verified(f"6:{head['hash']}") == (True, None)
    assert await verified(f"5:{head['hash']}") == (False, 5)
    assert await verified(f"8:{head['hash']}") == (False, 8)
    for malformed in ("6", "6:ab", f"0:{head['hash']}", f"-1:{head['hash']}", f"x{head['hash']}"):
        refused = await admin.get(f"{URL}/verify", params={"head": malformed})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "head")
    organisation = await store.organisations.default()
    store.kept_heads.write(organisation.id, AuditHead(9, b"x" * 32))
    assert await verified(f"6:{head['hash']}") == (False, 9)


async def test_a_token_is_shown_once_and_revoked(admin: httpx.AsyncClient, store: Store) -> None:
    """It opens what its role may until it is revoked; the list never has it."""
    body = {"name": "ci", "role": "tenant-viewer", "tenant": "acme", "expires_in_s": 3600}
    made = await admin.post("/admin/v1/tokens", json=body)
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    issued = made.json()
    token = issued.pop("token")
    assert token.startswith(f"sluice_admin_{issued['kid']}")
    listed = await admin.get("/admin/v1/tokens")
    assert [one["name"] for one in listed.json()["data"]] == ["first", "ci"]
    assert listed.json()["data"][1] == issued
    assert token[-38:] not in listed.text
    assert store.first_start is not None
    app = await admin_app(store)
    async with (
        admin_client(app, token) as viewer,
        admin_client(app, store.first_start.admin_token) as owner,
    ):
        assert (await viewer.get("/admin/v1/tenants/acme")).status_code == 200
        for name in ("id", "kid"):
            revoked = await owner.delete(f"/admin/v1/tokens/{issued[name]}")
            assert (revoked.status_code, revoked.json()["revoked_at"] is None) == (200, False)
        assert (await viewer.get("/admin/v1/tenants/acme")).status_code == 401


@pytest.mark.changes_nothing
@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", "", {"name": "x"}, 400, "role"),
        ("POST", "", {"name": "x", "role": "root"}, 400, "role"),
        ("POST", "", {"name": "A b", "role": "owner"}, 400, "name"),
        ("POST", "", {"name": "x", "role": "viewer", "tenant": "acme"}, 400, "tenant"),
        ("POST", "", {"name": "x", "role": "tenant-owner"}, 400, "tenant"),
        ("POST", "", {"name": "x", "role": "tenant-owner", "tenant": "none"}, 404, "tenant"),
        ("POST", "", {"name": "x", "role": "owner", "expires_in_s": 0}, 400, "expires_in_s"),
        ("DELETE", "/nothing", None, 404, "token_id"),
    ],
)
async def test_a_bad_token_is_a_clear_error(
    admin: httpx.AsyncClient, method: str, path: str, body: Any, status: int, param: str
) -> None:
    """Every refusal has OpenAI's shape and names the field; no token is made."""
    answer = await admin.request(method, f"/admin/v1/tokens{path}", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param
    assert len((await admin.get("/admin/v1/tokens")).json()["data"]) == 1
