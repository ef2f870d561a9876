"""Applying all at once: in one transaction, as it was planned, or not at all."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import asyncpg
import httpx
import pytest
from sqlalchemy import insert, select, text
from starlette.types import ASGIApp, Message

from gateway.domain.admin import AdminRole
from gateway.domain.desired import Present, Write
from gateway.domain.page import PageRequest
from gateway.domain.quota import Quota, Scope, ScopeKind
from gateway.domain.quota_settings import QuotaHolder, QuotaState
from gateway.services.admin.wanted import MAX_ENTRIES, wanted, wanted_tenant
from gateway.settings import Settings
from gateway.store import Store
from gateway.store.database import plain_url
from gateway.store.tables import audit_heads, plans
from scheduler.service import SWITCH_INTERVAL_S
from tests.beat import BEAT_S, BOUND_S, Beat
from tests.gateway.admin_app import ACTOR, admin_app, admin_client, new_process

pytestmark = pytest.mark.anyio

_TABLES = ("plans", "prices", "tenants", "keys", "key_secrets", "quotas", "audit_log")
WANTED: dict[str, Any] = {
    "plans": {"basic": {"rpm": 60}},
    "prices": {"m": {"input_usd_per_mtok": "1", "output_usd_per_mtok": "2"}},
    "organisation": {"monthly_tokens": 1_000_000},
    "tenants": {
        "acme": {"weight": 3, "plan": "basic", "quota": {"rpm": 10}, "keys": {"ci": {}}},
        "new": {"max_keys": 2, "keys": {"a": {"quota": {"rpm": 1}}, "b": {"max_tier": "flex"}}},
    },
}


@pytest.fixture
async def client(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    assert store.first_start is not None
    async with admin_client(await admin_app(store), store.first_start.admin_token) as client:
        yield client


async def rows(store: Store) -> dict[str, list[str]]:
    """Return all that settings are kept in."""
    async with store.database.platform() as connection:
        return {
            table: sorted(await connection.scalars(text(f"SELECT t::text FROM {table} t")))
            for table in _TABLES
        }


@asynccontextmanager
async def held_at_the_log(store: Store) -> AsyncIterator[None]:
    """Hold the head of the audit log: who makes a change stops there, with all of it written."""
    async with store.database.platform() as connection:
        await connection.execute(select(audit_heads).with_for_update())
        yield


async def stopped(settings: Settings) -> int:
    """Wait until a change waits for a lock, and return its backend."""
    assert settings.database_url is not None
    connection = await asyncpg.connect(plain_url(settings.database_url.get_secret_value()))
    query = (
        "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND application_name = 'sluice settings' AND datname = current_database()"
    )
    try:
        async with asyncio.timeout(10):
            while (pid := await connection.fetchval(query)) is None:
                await asyncio.sleep(0.01)
        return int(pid)
    finally:
        await connection.close()


async def posted(
    store: Store, app: ASGIApp, path: str, body: bytes, left: asyncio.Event
) -> list[Message]:
    """Post as a socket would, from a client that is there until `left`; returns what it is sent."""
    assert store.first_start is not None
    requests: list[Message] = [{"type": "http.request", "body": body}]
    sent: list[Message] = []

    async def receive() -> Message:
        if requests:
            return requests.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/admin/v1/{path}",
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {store.first_start.admin_token}".encode())],
        "client": ("127.0.0.1", 1),
        "state": {},
    }
    await app(scope, receive, send)
    return sent


async def test_all_of_it_is_made_and_said_in_the_log(
    store: Store, client: httpx.AsyncClient
) -> None:
    """What is wanted is there, each change has its record, and the chain holds."""
    done = await client.post("/admin/v1/apply", json=WANTED)
    assert done.status_code == 200, done.text
    assert {(key["tenant"], key["name"]) for key in done.json()["keys"]} == {
        ("acme", "ci"),
        ("new", "a"),
        ("new", "b"),
    }
    audit = (await client.get("/admin/v1/audit?limit=100")).json()["data"]
    actions = [one["action"] for one in audit if one["actor"] != "system"]
    assert sorted(actions) == sorted(
        ["plan.create", "price.create", "tenant.create", "tenant.update", *["key.create"] * 3]
        + ["quota.set"] * 3
    )
    changed = next(one for one in audit if one["action"] == "tenant.update")
    assert (changed["before"]["weight"], changed["after"]["weight"]) == (1, 3)
    await client.post("/admin/v1/plans", json={"name": "after"})
    assert (await client.get("/admin/v1/audit/verify")).json()["broken_seq"] is None
    again = (await client.post("/admin/v1/apply", json=WANTED)).json()
    assert (again["plan"]["num_to_do"], again["keys"]) == (0, [])
    tenant = (await client.get("/admin/v1/tenants/acme")).json()
    assert (tenant["plan"], tenant["version"]) == ("basic", 2)
    quota = (await client.get("/admin/v1/quotas/tenant/acme")).json()
    assert (quota["quota"]["rpm"], quota["version"]) == (10, 1)
    [flex] = [
        one
        for one in (await client.get("/admin/v1/keys?tenant=new")).json()["data"]
        if one["name"] == "b"
    ]
    assert (flex["max_tier"], flex["operator_set"]) == ("flex", ["max_tier"])


async def test_what_it_holds_a_key_to_is_marked_as_an_operators(client: httpx.AsyncClient) -> None:
    """As one by one: fields and limits, of a key that is made and of one that is changed."""
    made = (await client.post("/admin/v1/apply", json=WANTED)).json()["keys"]
    kids = {one["name"]: one["kid"] for one in made}
    quota = (await client.get(f"/admin/v1/quotas/key/{kids['a']}")).json()
    assert (quota["quota"]["rpm"], quota["operator_set"]) == (1, ["rpm"])
    keys = {"ci": {"models": ["m"], "max_tier": "default"}}
    await client.post("/admin/v1/apply", json={"tenants": {"acme": {"keys": keys}}})
    key = (await client.get(f"/admin/v1/keys/{kids['ci']}")).json()
    assert (key["models"], key["operator_set"], key["version"]) == (["m"], ["models"], 2)


async def test_limits_that_are_compared_are_held_to_the_end(store: Store) -> None:
    """Who sets first limits of a tenant meanwhile waits, and is not overwritten unseen."""
    assert store.first_start is not None
    organisation = await store.organisations.default()
    tenant = await store.tenants.by_name(organisation.id, "acme")
    assert tenant is not None
    scope = Scope(ScopeKind.TENANT, tenant.id)
    holder = QuotaHolder(scope, tenant.name, organisation.id, tenant.id)
    desired = wanted({}, {}, {}, [wanted_tenant("acme", {}, {"rpm": 5}, [])])
    setting: list[asyncio.Task[QuotaState]] = []

    async def agreed() -> None:
        setting.append(
            asyncio.create_task(store.quota_settings.put(ACTOR, holder, Quota(concurrency=1)))
        )
        done, _ = await asyncio.wait(setting, timeout=0.2)
        assert not done

    async def nothing(present: Present) -> list[Write]:
        assert present.quotas[scope].version == 0
        return []

    await store.settings.apply(ACTOR, organisation, desired, nothing, agreed)
    assert (await setting[0]).version == 1


async def test_a_token_that_it_made_opens_the_door(store: Store, client: httpx.AsyncClient) -> None:
    """A key is as one that is made alone: it authenticates, within its limits."""
    made = (await client.post("/admin/v1/apply", json=WANTED)).json()["keys"]
    token = next(one["key"] for one in made if one["name"] == "a")
    principal = await (await new_process(store)).auth.authenticate(token)
    assert (principal.tenant, [one.quota.rpm for one in principal.quotas]) == ("new", [1, None])


async def test_a_plan_changes_nothing(store: Store, client: httpx.AsyncClient) -> None:
    """It says what applying says, and no row is another."""
    before = await rows(store)
    plan = (await client.post("/admin/v1/apply/plan", json=WANTED)).json()
    assert await rows(store) == before
    done = await client.post("/admin/v1/apply", json={**WANTED, "fingerprint": plan["fingerprint"]})
    assert done.json()["plan"] == plan


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
async def test_an_end_in_a_year_that_there_is_not_is_refused(
    client: httpx.AsyncClient, at: str
) -> None:
    """A time that is in no year once it is written in another zone is the file's mistake."""
    body = {"tenants": {"acme": {"keys": {"ci": {"expires_at": at}}}}}
    refused = await client.post("/admin/v1/apply/plan", json=body)
    assert refused.status_code == 400, refused.text
    assert "tenants.acme.keys.ci" in refused.text


@pytest.mark.parametrize("name", ["nowhere", "Not A Name", "\0"])
@pytest.mark.parametrize("field", ["plan", "org"])
async def test_what_a_tenant_is_to_be_in_is_there(
    client: httpx.AsyncClient, field: str, name: str
) -> None:
    """A plan or an org that is nowhere, or that none can be called, is told with its place."""
    answer = await client.post("/admin/v1/apply/plan", json={"tenants": {"acme": {field: name}}})
    assert answer.status_code == 400
    said = answer.json()["error"]["message"]
    assert said == f"tenants.acme: there is no {field} '{name}'."


async def test_a_clash_of_names_leaves_nothing(
    store: Store, settings: Settings, client: httpx.AsyncClient
) -> None:
    """Somebody makes a plan of a name while it is made here: a conflict, and no row is another."""
    async with store.database.platform() as connection:
        organisation = await store.organisations.default()
        row = {"id": organisation.id, "organisation_id": organisation.id, "name": "basic"}
        await connection.execute(insert(plans).values(row))
        applying = asyncio.create_task(client.post("/admin/v1/apply", json=WANTED))
        await stopped(settings)
    after_theirs = await rows(store)
    answer = await applying
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert await rows(store) == after_theirs


async def test_a_database_that_ends_the_transaction_leaves_nothing(
    store: Store, settings: Settings, client: httpx.AsyncClient
) -> None:
    """With everything written and the log still to come, the connection dies; so does a gateway."""
    before = await rows(store)
    async with held_at_the_log(store):
        applying = asyncio.create_task(client.post("/admin/v1/apply", json=WANTED))
        pid = await stopped(settings)
        async with store.database.as_itself() as connection:
            await connection.execute(text(f"SELECT pg_terminate_backend({pid})"))
        answer = await applying
    assert answer.status_code == 503
    assert await rows(store) == before
    assert (await client.post("/admin/v1/apply", json=WANTED)).status_code == 200


async def test_a_client_that_leaves_before_the_end_leaves_nothing(
    store: Store, settings: Settings
) -> None:
    """Nobody would see the tokens of its keys."""
    assert store.first_start is not None
    app, before = await admin_app(store), await rows(store)
    left = asyncio.Event()
    body = json.dumps(WANTED).encode()
    async with held_at_the_log(store):
        applying = asyncio.create_task(posted(store, app, "apply", body, left))
        await stopped(settings)
        left.set()
    assert await applying == []
    assert await rows(store) == before


async def test_what_changed_meanwhile_is_shown_and_nothing_done(
    store: Store, client: httpx.AsyncClient
) -> None:
    """The fingerprint of an older plan is a conflict, which has the plan of now."""
    old = (await client.post("/admin/v1/apply/plan", json=WANTED)).json()
    await client.patch("/admin/v1/tenants/acme", json={"weight": 9})
    before = await rows(store)
    body = {**WANTED, "fingerprint": old["fingerprint"]}
    late = await client.post("/admin/v1/apply", json=body)
    assert (late.status_code, late.json()["error"]["code"]) == (409, "plan_changed")
    current = late.json()["current"]
    assert ["weight", 9, 3] in next(
        one["details"] for one in current["changes"] if one["subject"] == "tenant acme"
    )
    assert await rows(store) == before
    done = await client.post(
        "/admin/v1/apply", json={**WANTED, "fingerprint": current["fingerprint"]}
    )
    assert done.status_code == 200


async def test_changes_one_by_one_beside_it_never_wait_in_a_circle(
    store: Store, client: httpx.AsyncClient
) -> None:
    """Locks are taken in an order: no deadlock, and every change is whole."""
    await client.post("/admin/v1/apply", json=WANTED)
    keys = (await client.get("/admin/v1/keys?tenant=new")).json()["data"]

    async def apply(turn: int) -> int:
        tenants = {
            "acme": {"weight": 1 + turn, "plan": None if turn % 2 else "basic"},
            "new": {"quota": {"rpm": turn + 1}, "keys": {"a": {"allows_batch": turn % 2 == 0}}},
        }
        body = {"plans": {"basic": {"rpm": turn + 1}}, "tenants": tenants}
        return (await client.post("/admin/v1/apply", json=body)).status_code

    async def one_by_one(turn: int) -> list[int]:
        plan = {"plan": "basic" if turn % 2 else None}
        answers = [
            await client.patch("/admin/v1/tenants/acme", json=plan),
            await client.patch("/admin/v1/plans/basic", json={"quota": {"rpm": 100 + turn}}),
            await client.patch("/admin/v1/quotas/tenant/new", json={"rpm": 100 + turn}),
            await client.patch(f"/admin/v1/keys/{keys[0]['kid']}", json={"admin_read": True}),
        ]
        return [one.status_code for one in answers]

    done = await asyncio.gather(*(apply(n) for n in range(8)), *(one_by_one(n) for n in range(8)))
    assert done[:8] == [200] * 8
    assert done[8:] == [[200] * 4] * 8
    assert (await client.get("/admin/v1/audit/verify")).json()["broken_seq"] is None


async def test_everybody_is_told_after_it_stands(store: Store) -> None:
    """Schedulers of the new weight, keys of the new limits, requests of the new price."""
    process = await new_process(store)
    assert store.first_start is not None
    token = store.first_start.keys[0].token
    assert (await process.auth.authenticate(token)).weight == 1
    epoch = await store.auth_epoch.current()

    async def agreed() -> None:
        assert process.running.told == []

    prices = {"m": {"input_usd_per_mtok": Decimal(1), "output_usd_per_mtok": Decimal(2)}}
    tenants = [wanted_tenant("acme", {"weight": 4.0}, {"rpm": 5}, [])]
    desired = wanted({}, prices, {}, tenants)
    await process.services.apply.apply(ACTOR, desired, agreed=agreed)
    assert [tenant.weight for tenant in process.running.told] == [4]
    assert (await process.auth.authenticate(token)).weight == 4
    assert process.prices.price("m") is not None
    assert await store.auth_epoch.current() != epoch


async def test_more_than_may_be_applied_at_a_time_is_refused(client: httpx.AsyncClient) -> None:
    """With a text that says how many, before anything is read."""
    many = {f"t{n}": {} for n in range(MAX_ENTRIES + 1)}
    answer = await client.post("/admin/v1/apply", json={"tenants": many})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_many_entries")
    assert f"{MAX_ENTRIES:,} may be applied at a time" in answer.json()["error"]["message"]


async def test_keys_of_one_name_are_read_in_pieces_and_so_many(
    store: Store, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant may make any number of one name: a file is refused then, and says of whom."""
    for _ in range(5):
        await client.post("/admin/v1/keys", json={"tenant": "acme", "name": "ci"})
    wanted = {"tenants": {"acme": {"keys": {"ci": {"max_tier": "flex"}}}}}
    monkeypatch.setattr("gateway.store.keyset._TOGETHER", 2)
    monkeypatch.setattr("gateway.store.settings_present._MOST_KEYS", 6)
    done = (await client.post("/admin/v1/apply", json=wanted)).json()
    assert [one["sign"] for one in done["plan"]["changes"]] == ["=", *"~" * 5]
    for made in (1, 2):
        await client.post("/admin/v1/keys", json={"tenant": "acme", "name": "ci"})
        before = await rows(store)
        for path in ("/admin/v1/apply/plan", "/admin/v1/apply"):
            refused = await client.post(path, json=wanted)
            assert (made, refused.status_code) == (made, 400)
            assert refused.json()["error"]["code"] == "too_many_entries"
            assert "of tenant 'acme' alone 6" in refused.json()["error"]["message"]
        assert await rows(store) == before


async def test_as_many_as_may_be_hold_the_loop_no_longer_than_anything(store: Store) -> None:
    """Five thousand, planned and made: nobody else waits 20 ms for a turn."""
    app = await admin_app(store)
    gc.collect()
    gc.freeze()
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    held_s: dict[str, float] = {}
    for path in ("apply/plan", "apply"):
        # What a machine has to do besides is in what is measured.
        for weight in range(3):
            body = {"plans": {"p": {"rpm": 1}}, "tenants": _many(MAX_ENTRIES // 3, weight)}
            text_of = json.dumps(body).encode()
            beat = Beat()
            [start, *_] = await posted(store, app, path, text_of, asyncio.Event())
            await asyncio.sleep(2 * BEAT_S)
            # As the next request would, with all that this one left.
            gc.collect(1)
            held_s[path] = beat.stop()
            assert start["status"] == 200
            if held_s[path] <= BOUND_S:
                break
    sys.setswitchinterval(switch_s)
    gc.unfreeze()
    assert {path: held for path, held in held_s.items() if held > BOUND_S} == {}


def _many(num_tenants: int, weight: int) -> dict[str, Any]:
    """Name tenants with two keys each, and limits."""
    keys = {"a": {"models": ["m"], "quota": {"rpm": 5}}, "b": {"expires_in_s": "1e6"}}
    tenant = {"weight": f"{weight}.5", "plan": "p", "quota": {"rpm": 10}, "keys": keys}
    return {f"t{number:05}": tenant for number in range(num_tenants - 1)}


async def test_who_reads_may_plan_and_not_apply(store: Store, client: httpx.AsyncClient) -> None:
    """A viewer sees the plan; the tenants' page is as it was."""
    body = {"name": "eve", "role": AdminRole.VIEWER.value}
    token = (await client.post("/admin/v1/tokens", json=body)).json()["token"]
    organisation = await store.organisations.default()
    before = await store.tenants.page(organisation.id, None, PageRequest(10, None))
    async with admin_client(await admin_app(store), token) as viewer:
        assert (await viewer.post("/admin/v1/apply/plan", json=WANTED)).status_code == 200
        assert (await viewer.post("/admin/v1/apply", json=WANTED)).status_code == 403
    assert await store.tenants.page(organisation.id, None, PageRequest(10, None)) == before
