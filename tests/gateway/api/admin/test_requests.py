"""The admin API of finished requests: found by id, listed by what is asked for, each his own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from gateway.domain.request_record import Cause, RequestRecord
from gateway.store import Store
from tests.gateway.admin_app import admin_app, admin_client
from tests.gateway.request_records import request_record

pytestmark = pytest.mark.anyio

REQUESTS = "/admin/v1/requests"
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


async def recorded(store: Store, tenant: int = 0, **changes: object) -> RequestRecord:
    """Have a record of a first start's tenant be there."""
    assert store.first_start is not None
    organisation = await store.organisations.default()
    record = request_record(
        organisation_id=organisation.id,
        tenant_id=store.first_start.keys[tenant].key.tenant_id,
        **changes,
    )
    await store.request_records.insert([record])
    return record


async def test_a_request_is_found_by_the_id_that_its_answer_had(store: Store) -> None:
    """As a header and as an answer spell it; its record says why and when."""
    assert store.first_start is not None
    record = await recorded(store)
    async with admin_client(await admin_app(store), store.first_start.admin_token) as client:
        for prefix in ("req_", "chatcmpl-", "cmpl-", ""):
            answer = await client.get(f"{REQUESTS}/{prefix}{record.request_id.hex}")
            assert answer.status_code == 200
        assert answer.json() == {
            "id": f"req_{record.request_id.hex}",
            "at": "2026-11-21T10:30:00.123456Z",
            "tenant": "acme",
            "key_id": str(record.key_id),
            "model": "demo",
            "tier": "default",
            "status": 200,
            "code": "",
            "outcome": "completed",
            "cause": "queue",
            "missed": ["ttft"],
            "is_preempted": False,
            "is_degraded": False,
            "duration_s": 2.5,
            "ttft_s": 2.0,
            "output_tokens": 20,
            "details": record.details,
        }
        for name in (f"req_{'0' * 32}", "req_x", "x" * 300, record.request_id.hex.upper()):
            answer = await client.get(f"{REQUESTS}/{name}")
            assert (answer.status_code, answer.json()["error"]["param"]) == (404, "id")


async def test_a_tenant_learns_nothing_of_the_queue(store: Store) -> None:
    """Its own request's record has its own times, and not how many were ahead or what they did."""
    assert store.first_start is not None
    phase = {"name": "queue", "begin_s": 0.1, "end_s": 0.4, "detail": {"ahead": 7}}
    generation = {"queued_s": 0.1, "num_ahead": 7, "waits_s": {"turn": 0.3}, "rests_s": {}}
    details = {
        "sentence": "7 were ahead of it.",
        "input_tokens": 5,
        "phases": [phase],
        "generations": [generation],
    }
    record = await recorded(store, details=details)
    token = store.first_start.admin_token
    app = await admin_app(store)
    async with admin_client(app, token) as owner:
        whole = await owner.get(f"{REQUESTS}/{record.request_id.hex}")
        made = {"name": "t", "role": "tenant-viewer", "tenant": "acme"}
        issued = await owner.post("/admin/v1/tokens", json=made)
    async with admin_client(app, issued.json()["token"]) as viewer:
        seen = await viewer.get(f"{REQUESTS}/{record.request_id.hex}")
    assert whole.json()["details"] == details
    assert seen.json()["details"] == {
        "input_tokens": 5,
        "phases": [{**phase, "detail": {}}],
        "remarks": [],
        "generations": [{"queued_s": 0.1, "rests_s": {}}],
    }


async def test_requests_are_chosen_from(store: Store) -> None:
    """By tenant, status, cause, missed promises and time; a page has 100 at most."""
    assert store.first_start is not None
    kept = await recorded(store)
    refused = await recorded(store, tenant=1, at=NOON, status=429, cause=Cause.OWN_LIMIT, missed=())
    async with admin_client(await admin_app(store), store.first_start.admin_token) as client:
        for params, expected in (
            ({}, [refused, kept]),
            ({"tenant": "globex"}, [refused]),
            ({"status": "429"}, [refused]),
            ({"cause": "queue"}, [kept]),
            ({"missed": "true"}, [kept]),
            ({"missed": "false"}, [refused]),
            ({"from": "2026-11-21T12:00Z"}, [refused]),
            ({"to": "2026-11-21T12:00Z"}, [kept]),
        ):
            answer = await client.get(REQUESTS, params=params)
            found = [UUID(one["id"].removeprefix("req_")) for one in answer.json()["data"]]
            assert found == [one.request_id for one in expected], params
        assert "details" not in answer.json()["data"][0]
        for params, param in (
            ({"status": "x"}, "status"),
            ({"cause": "x"}, "cause"),
            ({"missed": "1"}, "missed"),
            ({"from": "noon"}, "from"),
            ({"whose": "x"}, "whose"),
        ):
            answer = await client.get(REQUESTS, params=params)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert (await client.get(REQUESTS, params={"tenant": "nobody"})).status_code == 404


async def test_a_page_is_bounded_and_followed_by_the_next(store: Store) -> None:
    """However many are asked for, a page has 100, and the next goes on after it."""
    assert store.first_start is not None
    record = await recorded(store)
    many = [
        request_record(
            organisation_id=record.organisation_id,
            tenant_id=record.tenant_id,
            at=NOON + timedelta(seconds=n),
        )
        for n in range(104)
    ]
    await store.request_records.insert(many)
    async with admin_client(await admin_app(store), store.first_start.admin_token) as client:
        page = (await client.get(REQUESTS, params={"limit": "1000"})).json()
        assert (len(page["data"]), page["has_more"]) == (100, True)
        rest = (await client.get(REQUESTS, params={"after": page["next"]})).json()
        assert (len(rest["data"]), rest["has_more"]) == (5, False)
        ids = {one["id"] for one in [*page["data"], *rest["data"]]}
        assert len(ids) == 105


async def test_a_tenants_own_see_their_own(store: Store) -> None:
    """Another tenant's request is not there for who is bound to one, by id or in a list."""
    assert store.first_start is not None
    ours, theirs = await recorded(store), await recorded(store, tenant=1)
    app = await admin_app(store)
    async with admin_client(app, store.first_start.admin_token) as owner:
        made = await owner.post(
            "/admin/v1/tokens", json={"name": "ann", "role": "tenant-viewer", "tenant": "acme"}
        )
        assert made.status_code == 201, made.text
    async with admin_client(app, made.json()["token"]) as client:
        assert (await client.get(f"{REQUESTS}/req_{ours.request_id.hex}")).status_code == 200
        assert (await client.get(f"{REQUESTS}/req_{theirs.request_id.hex}")).status_code == 404
        seen = (await client.get(REQUESTS)).json()["data"]
        assert [one["id"] for one in seen] == [f"req_{ours.request_id.hex}"]
        answer = await client.get(REQUESTS, params={"tenant": "globex"})
        assert answer.status_code == 404
