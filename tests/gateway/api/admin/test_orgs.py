"""The admin API of orgs, and what the running scheduler learns of them."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.credentials import Token
from gateway.store import Store
from tests.gateway.admin_app import ACTOR, admin_app, admin_client, new_process

pytestmark = pytest.mark.anyio


def _first(store: Store) -> Token:
    assert store.first_start is not None
    return store.first_start.admin_token


async def test_an_org_is_made_changed_and_removed(store: Store) -> None:
    """Tenants are put into it by name; versions and bounds are kept as those of tenants are."""
    async with admin_client(await admin_app(store), _first(store)) as client:

        async def ask(method: str, path: str, **body: Any) -> tuple[int, Any]:
            done = await client.request(method, f"/admin/v1{path}", json=body or None)
            return done.status_code, done.json()

        status, made = await ask("POST", "/orgs", name="umbrella", weight=4)
        assert (status, made["weight"], made["version"]) == (201, 4.0, 1)
        assert (await ask("POST", "/orgs", name="umbrella"))[0] == 409
        assert (await ask("POST", "/orgs", name="Not a name"))[0] == 400
        for weight in (0, -1, 1e9):
            status, wrong = await ask("PATCH", "/orgs/umbrella", weight=weight)
            assert (status, wrong["error"]["param"]) == (400, "weight")
        status, tenant = await ask("POST", "/tenants", name="research", org="umbrella")
        assert (status, tenant["org"]) == (201, "umbrella")
        status, tenant = await ask("PATCH", "/tenants/acme", org="umbrella")
        assert (status, tenant["org"], tenant["version"]) == (200, "umbrella", 2)
        assert (await ask("PATCH", "/tenants/acme", org="none"))[0] == 404
        assert (await ask("PATCH", "/orgs/umbrella", weight=3, version=7))[0] == 409
        status, changed = await ask("PATCH", "/orgs/umbrella", weight=3, version=1)
        assert (status, changed["weight"], changed["version"]) == (200, 3.0, 2)
        assert (await ask("GET", "/orgs/umbrella"))[1] == changed
        assert [one["name"] for one in (await ask("GET", "/orgs"))[1]["data"]] == ["umbrella"]
        assert (await ask("DELETE", "/orgs/umbrella"))[0] == 409
        for name in ("acme", "research"):
            done = await client.patch(f"/admin/v1/tenants/{name}", json={"org": None})
            assert done.json()["org"] is None
        assert (await ask("DELETE", "/orgs/umbrella"))[0] == 200
        assert (await ask("GET", "/orgs/umbrella"))[0] == 404


async def test_a_file_puts_tenants_into_orgs(store: Store) -> None:
    """A tenant that is applied goes into an org that is there, or nothing is applied."""
    async with admin_client(await admin_app(store), _first(store)) as client:
        await client.post("/admin/v1/orgs", json={"name": "umbrella"})
        wanted = {"tenants": {"acme": {"org": "umbrella"}, "new": {"org": "umbrella"}}}
        done = await client.post("/admin/v1/apply", json=wanted)
        assert done.status_code == 200, done.text
        again = (await client.post("/admin/v1/apply/plan", json=wanted)).json()
        assert again["num_to_do"] == 0
        tenants = (await client.get("/admin/v1/tenants")).json()["data"]
        assert {one["name"]: one["org"] for one in tenants} == {
            "acme": "umbrella",
            "globex": None,
            "new": "umbrella",
        }
        taken = {"tenants": {"acme": {"org": None}, "new": {"org": "none"}}}
        refused = await client.post("/admin/v1/apply", json=taken)
        assert refused.status_code == 400
        assert "there is no org 'none'" in refused.json()["error"]["message"]
        del taken["tenants"]["new"]
        assert (await client.post("/admin/v1/apply", json=taken)).status_code == 200
        assert (await client.get("/admin/v1/tenants/acme")).json()["org"] is None


async def test_a_weight_reaches_what_runs_and_who_comes_next(store: Store) -> None:
    """The scheduler is told of it, and the next request of a key that was cached carries it."""
    assert store.first_start is not None
    process = await new_process(store)
    token = store.first_start.keys[0].token
    await process.services.orgs.create(ACTOR, "umbrella", weight=4.0)
    await process.services.tenants.update(ACTOR, "acme", {"org": "umbrella"})
    assert (await process.auth.authenticate(token)).org_weight == 4.0
    changed = await process.services.orgs.update(ACTOR, "umbrella", 2.0)
    assert process.running.told_of_orgs == [changed]
    assert (await process.auth.authenticate(token)).org_weight == 2.0
