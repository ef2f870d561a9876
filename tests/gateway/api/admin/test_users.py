"""The admin API of users and their sessions."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from gateway.credentials import LINK_PREFIX, parse_token
from gateway.domain.sign_in import Caller
from gateway.store import Store
from gateway.store.sign_in_tables import users
from tests.gateway.admin_app import admin_app, admin_client

pytestmark = pytest.mark.anyio


async def test_a_user_is_made_changed_and_removed(store: Store) -> None:
    """An owner makes a user and gets the link once; a change takes the version that was read."""
    assert store.first_start is not None
    app = await admin_app(store)
    async with admin_client(app, store.first_start.admin_token) as client:
        body = {"name": "Ann@Example.org", "role": "tenant-owner", "tenant": "acme"}
        made = (await client.post("/admin/v1/users", json=body)).json()
        assert (made["name"], made["role"], made["tenant"]) == (
            "ann@example.org",
            "tenant-owner",
            "acme",
        )
        assert made["link"].startswith("/admin/password?link=sluice_link_")
        path = "/admin/v1/users/ann@example.org"
        shown = (await client.get(path)).json()
        assert shown["has_password"] is False
        assert "link" not in shown
        stale = await client.patch(path, json={"role": "viewer"}, headers={"if-match": '"7"'})
        assert stale.status_code == 409
        assert stale.json()["current"]["version"] == 1
        done = await client.patch(path, json={"role": "viewer", "version": 1})
        assert (done.json()["role"], done.json()["tenant"], done.json()["version"]) == (
            "viewer",
            None,
            2,
        )
        reset = await client.post(f"{path}/link")
        assert reset.status_code == 201
        assert reset.json()["link"] != made["link"]
        listed = (await client.get("/admin/v1/users")).json()["data"]
        assert [user["name"] for user in listed] == ["ann@example.org"]
        assert (await client.delete(path)).status_code == 200
        assert (await client.get(path)).status_code == 404
        log = (await client.get("/admin/v1/audit?limit=5")).json()["data"]
        assert [record["action"] for record in log] == [
            "user.delete",
            "user.link",
            "user.update",
            "user.link",
            "user.create",
        ]
        assert "sluice_link" not in str(log)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "ann", "role": "tenant-viewer"}, 400),
        ({"name": "ann", "role": "viewer", "tenant": "acme"}, 400),
        ({"name": "ann", "role": "tenant-viewer", "tenant": "nobody"}, 404),
        ({"name": "an n", "role": "viewer"}, 400),
        ({"name": "", "role": "viewer"}, 400),
        ({"name": "user:ann", "role": "viewer"}, 400),
        ({"name": "ann", "role": "king"}, 400),
        ({"name": "ann", "role": "viewer", "password": "x"}, 400),
    ],
)
@pytest.mark.changes_nothing
async def test_what_is_no_user_is_refused(store: Store, body: dict[str, str], status: int) -> None:
    """A tenant goes with its roles, a name is one, and there is no field for a password."""
    assert store.first_start is not None
    async with admin_client(await admin_app(store), store.first_start.admin_token) as client:
        assert (await client.post("/admin/v1/users", json=body)).status_code == status


async def test_a_tenant_is_not_told_where_a_user_comes_from(store: Store) -> None:
    """Who moves from one tenant to another is in neither's log, which would name the other."""
    assert store.first_start is not None
    app = await admin_app(store)
    async with admin_client(app, store.first_start.admin_token) as client:
        made = {"name": "ann", "role": "tenant-owner", "tenant": "acme"}
        await client.post("/admin/v1/users", json=made)
        moved = {"role": "tenant-viewer", "tenant": "globex"}
        await client.patch("/admin/v1/users/ann", json=moved)
        await client.patch("/admin/v1/users/ann", json={"is_suspended": True})
        tokens = [
            (
                await client.post("/admin/v1/tokens", json={"name": "t", **moved, "tenant": tenant})
            ).json()["token"]
            for tenant in ("acme", "globex")
        ]
        [newest, *_] = (await client.get("/admin/v1/audit?action=user.update")).json()["data"][1:]
        assert (newest["before"]["tenant"], newest["after"]["tenant"]) == ("acme", "globex")
    told = []
    for token in tokens:
        async with admin_client(app, token) as tenant:
            log = (await tenant.get("/admin/v1/audit?object_kind=user")).json()["data"]
            told.append([(one["action"], one["after"]["tenant"]) for one in log])
    assert told == [
        [("user.link", "acme"), ("user.create", "acme")],
        [("user.update", "globex")],
    ]


async def test_only_owners_see_and_make_users(store: Store) -> None:
    """No other role finds any of these routes open."""
    assert store.first_start is not None
    app = await admin_app(store)
    async with admin_client(app, store.first_start.admin_token) as client:
        body = {"name": "op", "role": "operator"}
        operator = (await client.post("/admin/v1/tokens", json=body)).json()["token"]
    async with admin_client(app, operator) as client:
        for method, path in (
            ("GET", "/users"),
            ("POST", "/users"),
            ("GET", "/users/ann"),
            ("PATCH", "/users/ann"),
            ("DELETE", "/users/ann"),
            ("POST", "/users/ann/link"),
            ("POST", "/first-link"),
            ("GET", "/sessions"),
            ("DELETE", "/sessions/x"),
        ):
            answer = await client.request(method, f"/admin/v1{path}", json={})
            assert answer.status_code == 403, path


async def test_the_last_owner_who_can_sign_in_stays(store: Store) -> None:
    """Neither demoting, suspending nor removing leaves the pages without an owner."""
    assert store.first_start is not None
    app = await admin_app(store)
    async with admin_client(app, store.first_start.admin_token) as client:
        link = (await client.post("/admin/v1/first-link")).json()["link"].partition("link=")[2]
        organisation = await store.organisations.default()
        token = parse_token(link, LINK_PREFIX)
        assert token is not None
        mac = store.secrets.session_mac(token)
        await store.users.follow_link(Caller(), organisation.id, mac, "ann", "$argon2id$x")
        path = "/admin/v1/users/ann"
        for change in ({"role": "viewer"}, {"is_suspended": True}):
            assert (await client.patch(path, json=change)).status_code == 400
        assert (await client.delete(path)).status_code == 400
        assert (await client.post("/admin/v1/first-link")).status_code == 409
        async with store.database.platform() as connection:
            [row] = (await connection.execute(select(users))).all()
        assert (row.role, row.suspended_at) == ("owner", None)
