"""One batch's page: how far it is, what it costs, and what failed by cause."""

from __future__ import annotations

import json
from uuid import uuid4

import httpx
import pytest
from sqlalchemy import insert

from gateway.domain.batch import PausedFor
from gateway.store.batch_tables import batch_results
from tests.admin_ui.world import World, add_batch

pytestmark = pytest.mark.anyio


async def test_failed_items_are_grouped_by_cause(world: World, client: httpx.AsyncClient) -> None:
    """Items that failed alike are one line, with how many, the first of them and its words."""
    batch_id = await add_batch(world)
    tenant = await world.parts.admin.tenants.get("acme")
    bodies = [
        {"error": {"code": "context_length_exceeded", "message": "It is too long."}},
        {"response": {"status_code": 400, "body": {"error": {"code": "x", "message": "No."}}}},
        {"error": {"code": "context_length_exceeded", "message": "It is too long."}},
    ]
    async with world.store.database.platform() as connection:
        for line, body in enumerate(bodies, 4):
            place = {"batch_id": batch_id, "line": line, "tenant_id": tenant.id}
            said = json.dumps(body).encode()
            await connection.execute(
                insert(batch_results).values(**place, is_error=True, body=said)
            )
    batch = (await world.parts.admin.batches.get(batch_id)).batch
    groups = await world.parts.admin.batches.errors(batch)
    assert [(one.code, one.number, one.line, one.message) for one in groups] == [
        ("context_length_exceeded", 2, 4, "It is too long."),
        ("x", 1, 5, "No."),
    ]
    page = await client.get(f"/admin/batches/batch_{batch_id.hex}")
    for text in ("8 of 10", "context length exceeded", "−50.0 %", "every 3s"):
        assert text in page.text, text
    assert f"/admin/batches/batch_{batch_id.hex}" in (await client.get("/admin/batches")).text
    assert (await client.get(f"/admin/batches/batch_{uuid4().hex}")).status_code == 404


async def test_what_failed_may_quote_anything(world: World, client: httpx.AsyncClient) -> None:
    """A NUL in what a tenant sent is no end of the page that shows why it was refused."""
    batch_id = await add_batch(world)
    tenant = await world.parts.admin.tenants.get("acme")
    said = {"response": {"body": {"error": {"code": "x", "message": "No \\u0000, no a\x00b."}}}}
    row = {"batch_id": batch_id, "line": 4, "tenant_id": tenant.id, "is_error": True}
    async with world.store.database.platform() as connection:
        await connection.execute(
            insert(batch_results).values(**row, body=json.dumps(said).encode())
        )
    page = await client.get(f"/admin/batches/batch_{batch_id.hex}")
    assert page.status_code == 200
    assert "no a\N{REPLACEMENT CHARACTER}b." in page.text


async def test_a_page_says_what_its_batch_waits_for(
    world: World, client: httpx.AsyncClient
) -> None:
    """In the words that its tenant is told, of which some may be a tenant's."""
    batch_id = await add_batch(world)
    await world.store.batches.pause({batch_id: "Line 3: no <b>model</b>."}, PausedFor.BUDGET)
    page = await client.get(f"/admin/batches/batch_{batch_id.hex}")
    assert "Line 3: no &lt;b&gt;model&lt;/b&gt;." in page.text


async def test_errors_of_an_input_are_grouped_too(world: World, client: httpx.AsyncClient) -> None:
    """A batch that failed at its input says what is wrong with it, by cause."""
    errors = [{"code": "invalid_json", "message": "No JSON.", "line": n} for n in (7, 3)]
    batch_id = await add_batch(world, state="failed", errors=errors, num_failed=0)
    page = await client.get(f"/admin/batches/batch_{batch_id.hex}/now")
    assert "invalid json" in page.text
    [group] = await world.parts.admin.batches.errors(
        (await world.parts.admin.batches.get(batch_id)).batch
    )
    assert (group.number, group.line) == (2, 3)


async def test_the_sample_is_a_batchs_input(client: httpx.AsyncClient) -> None:
    """The sample file's lines are requests with ids of their own, for the model that is served."""
    sample = await client.get("/admin/batches/sample.jsonl")
    lines = [json.loads(line) for line in sample.text.splitlines()]
    assert len({line["custom_id"] for line in lines}) == len(lines) == 3
    assert all(line["body"]["model"] == "sluice-demo" for line in lines)
