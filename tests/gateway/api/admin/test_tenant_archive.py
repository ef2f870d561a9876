"""Deleting a tenant: what ends, what stays, and who may have its name."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from gateway.domain import ApiKey, KeyDraft, KeySecret
from gateway.domain.admin import AdminRole, AdminTokenDraft
from gateway.domain.tenant_archive import is_past_name
from gateway.errors import AuthenticationFailed, NotFound
from gateway.store import Store, key_rows, tenant_archive
from tests.gateway.admin_app import ACTOR, admin_app, admin_client, new_process

pytestmark = pytest.mark.anyio


def _of(store: Store) -> tuple[str, str]:
    """The first start's admin token, and the key of acme."""
    first = store.first_start
    assert first is not None
    return first.admin_token, next(one.token for one in first.keys if one.key.tenant == "acme")


async def test_a_deleted_tenants_keys_and_tokens_end_and_its_records_stay(store: Store) -> None:
    """Its name, plan and org are free; audit log and ledger are found by what it is called then."""
    token, _ = _of(store)
    async with admin_client(await admin_app(store), token) as client:

        async def ask(method: str, path: str, **body: Any) -> tuple[int, Any]:
            done = await client.request(method, f"/admin/v1{path}", json=body or None)
            return done.status_code, done.json()

        await ask("POST", "/orgs", name="umbrella")
        await ask("POST", "/plans", name="basic")
        _, before = await ask("PATCH", "/tenants/acme", org="umbrella", plan="basic")
        _, made = await ask("POST", "/tokens", name="t", role="tenant-viewer", tenant="acme")
        assert (await ask("DELETE", "/orgs/umbrella"))[0] == 409
        status, gone = await ask("DELETE", "/tenants/acme")
        assert (status, gone["id"]) == (200, before["id"])
        assert (gone["revoked_keys"], gone["revoked_tokens"]) == (1, 1)
        assert gone["name"] == f"acme~{before['id'][:8]}"

        for method, path in (("DELETE", "/tenants/acme"), ("GET", "/tenants/acme")):
            assert (await ask(method, path))[0] == 404
        assert (await ask("PATCH", f"/tenants/{gone['name']}", weight=2))[0] == 404
        assert (await ask("DELETE", f"/tenants/{gone['name']}"))[0] == 404
        assert (await ask("POST", "/keys", tenant="acme", name="k"))[0] == 404
        listed = (await ask("GET", "/tenants"))[1]["data"]
        assert [one["name"] for one in listed] == ["globex"]
        assert (await ask("DELETE", "/orgs/umbrella"))[0] == 200
        assert (await ask("DELETE", "/plans/basic"))[0] == 200

        keys = (await ask("GET", "/keys"))[1]["data"]
        ended = [one for one in keys if one["tenant"] == gone["name"]]
        assert [one["status"] for one in ended] == ["revoked"]
        log = (await ask("GET", f"/audit?tenant={gone['name']}"))[1]["data"]
        assert [one["action"] for one in log][:3] == ["tenant.delete", "token.revoke", "key.revoke"]
        assert (log[0]["before"]["org"], log[0]["after"]["org"]) == ("umbrella", None)
        assert (await ask("GET", f"/usage?tenant={gone['name']}"))[0] == 200
    async with admin_client(await admin_app(store), made["token"]) as client:
        assert (await client.get("/admin/v1/tenants")).status_code == 401


async def test_many_keys_end_and_leave_the_loop_to_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one change, each with its record, of which a hundred are looked at in a row."""
    token, _ = _of(store)
    others, turns = 0, list[int]()

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    def noting(row: Any) -> ApiKey:
        turns.append(others)
        return key_rows.api_key(row)

    async with admin_client(await admin_app(store), token) as client:
        keys: dict[str, Any] = {f"k{number}": {} for number in range(250)}
        await client.post("/admin/v1/apply", json={"tenants": {"acme": {"keys": keys}}})
        monkeypatch.setattr(tenant_archive, "api_key", noting)
        beside = asyncio.ensure_future(other())
        gone = (await client.delete("/admin/v1/tenants/acme")).json()
        beside.cancel()
        assert gone["revoked_keys"] == 251
        found = (await client.get("/admin/v1/keys?limit=1000")).json()["data"]
        ended = [one["kid"] for one in found if one["status"] == "revoked"]
        log = (await client.get("/admin/v1/audit?action=key.revoke&limit=1000")).json()["data"]
        assert sorted(one["after"]["kid"] for one in log) == sorted(ended)
    assert len(ended) == 251
    assert len(turns) == 2 * 251
    begun = [0, *(n for n, (a, b) in enumerate(pairwise(turns), 1) if b > a), len(turns)]
    assert max(b - a for a, b in pairwise(begun)) <= 100


async def test_another_tenant_of_the_name_has_nothing_of_the_first(store: Store) -> None:
    """It is made anew, by hand or by a file, and its ledger begins at nothing."""
    token, _ = _of(store)
    async with admin_client(await admin_app(store), token) as client:
        first = (await client.get("/admin/v1/tenants/acme")).json()
        await client.delete("/admin/v1/tenants/acme")
        wanted = {"tenants": {"acme": {"weight": 5}, "globex": {}}}
        plan = (await client.post("/admin/v1/apply/plan", json=wanted)).json()
        assert not any("acme~" in one for one in plan["not_named"])
        done = await client.post("/admin/v1/apply", json=wanted)
        assert done.status_code == 200, done.text
        again = (await client.get("/admin/v1/tenants/acme")).json()
        assert (again["weight"], again["version"]) == (5.0, 1)
        assert again["id"] != first["id"]
        keys = (await client.get("/admin/v1/keys", params={"tenant": "acme"})).json()
        assert keys["data"] == []


async def test_a_version_that_passed_deletes_nothing(store: Store) -> None:
    """Who saw an older version gets the present one, and the tenant lives."""
    token, _ = _of(store)
    async with admin_client(await admin_app(store), token) as client:
        await client.patch("/admin/v1/tenants/acme", json={"weight": 2})
        late = await client.delete("/admin/v1/tenants/acme", headers={"if-match": '"1"'})
        assert (late.status_code, late.json()["current"]["version"]) == (409, 2)
        now = await client.delete("/admin/v1/tenants/acme", headers={"if-match": '"2"'})
        assert now.status_code == 200


async def test_its_cached_key_is_refused_at_once_and_elsewhere_with_the_epoch(store: Store) -> None:
    """In the process that deleted it nothing is remembered; another one learns by the epoch.

    What ran on the key is found by the same: it is dead for who asks on behalf of running requests.
    """
    _, key = _of(store)
    here, there = await new_process(store), await new_process(store)
    kid = (await here.auth.authenticate(key)).kid
    await there.auth.authenticate(key)
    await there.upkeep.follow_epoch()
    await here.services.tenant_archive.archive(ACTOR, "acme")
    with pytest.raises(AuthenticationFailed):
        await here.auth.authenticate(key)
    await there.upkeep.follow_epoch()
    with pytest.raises(AuthenticationFailed):
        await there.auth.authenticate(key)
    assert await there.auth.dead_keys({kid}) == {kid}


async def test_nothing_is_given_to_a_tenant_that_went_meanwhile(store: Store) -> None:
    """A key or a token that was on its way when the tenant was deleted is refused."""
    here = await new_process(store)
    tenant = await here.services.tenants.get("acme")
    await here.services.tenant_archive.archive(ACTOR, "acme")
    secret = KeySecret(pepper_id="p", mac=bytes(32), is_tagged=True)
    draft = KeyDraft(kid="k" * 16, name="late", secret=secret)
    with pytest.raises(NotFound):
        await store.keys.add(ACTOR, tenant, draft)
    late = AdminTokenDraft(
        kid="t" * 16,
        pepper_id="p",
        mac=bytes(32),
        name="late",
        role=AdminRole.TENANT_VIEWER,
        tenant_id=tenant.id,
        expires_at=datetime.now(UTC) + timedelta(days=1),
        is_tagged=True,
    )
    with pytest.raises(NotFound):
        await store.admin_tokens.add(ACTOR, tenant.organisation_id, late)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("acme", True),
        ("acme~0123abcd", True),
        ("~0123abcd", False),
        ("acme~0123abc", False),
        ("acme~0123ABCD", False),
        ("Not a name", False),
        ("acme~01\n3abcd", False),
    ],
)
def test_what_a_past_tenant_may_be_called(text: str, is_one: bool) -> None:
    """A name, or a name with the eight digits that set an archived tenant apart."""
    assert is_past_name(text) is is_one
