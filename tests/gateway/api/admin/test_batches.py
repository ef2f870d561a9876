"""The admin API of items that killed their workers."""

from __future__ import annotations

import pytest

from gateway.store import Store
from tests.gateway.admin_app import admin_app, admin_client
from tests.gateway.store.batch_rows import claimed, killed, running_batch

pytestmark = pytest.mark.anyio

DEAD = "/admin/v1/batches/dead"


async def test_dead_items_are_listed_and_requeued(store: Store) -> None:
    """By batch or by line, each time with a record that names the lines; others stay."""
    assert store.first_start is not None
    batch, other = await running_batch(store, 4), await running_batch(store, 1, tenant=1)
    await killed(store, batch, 4)
    await killed(store, other)
    name = f"batch_{batch.id.hex}"
    async with admin_client(await admin_app(store), store.first_start.admin_token) as client:
        page = (await client.get(DEAD, params={"tenant": "acme", "limit": "3"})).json()
        assert [one["line"] for one in page["data"]] == [1, 2, 3]
        assert page["data"][0] | {"since": None} == {
            **{"tenant": "acme", "batch": name, "line": 1, "custom_id": "item-1"},
            **{"deaths": 3, "since": None},
        }
        rest = await client.get(DEAD, params={"batch": name, "after": page["next"]})
        assert [one["line"] for one in rest.json()["data"]] == [4]
        assert len((await client.get(DEAD)).json()["data"]) == 5

        done = await client.post(f"{DEAD}/requeue", json={"batch": name, "lines": [4, 2, 7]})
        assert (done.status_code, done.json()) == (200, {"batch": name, "lines": [2, 4]})
        assert [item.run.line for item in await claimed(store, batch, 9)] == [4, 2]
        done = await client.post(f"{DEAD}/requeue", json={"batch": name})
        assert done.json()["lines"] == [1, 3]
        done = await client.post(f"{DEAD}/requeue", json={"batch": name})
        assert (done.status_code, done.json()["lines"]) == (200, [])

        log = (await client.get("/admin/v1/audit", params={"action": "batch.requeue"})).json()
        assert [one["after"]["lines"] for one in log["data"]] == [[1, 3], [2, 4]]
        assert {one["object_id"] for one in log["data"]} == {str(batch.id)}
        assert {one["tenant_id"] for one in log["data"]} == {str(batch.tenant_id)}
        assert len((await client.get(DEAD)).json()["data"]) == 1


async def test_what_is_no_batch_or_no_list_of_lines_is_refused(store: Store) -> None:
    """404 for a batch or tenant that is not there, 400 for lines that are none."""
    assert store.first_start is not None
    batch = await running_batch(store, 1)
    async with admin_client(await admin_app(store), store.first_start.admin_token) as client:

        async def refused(**body: object) -> tuple[int, str | None]:
            done = await client.post(f"{DEAD}/requeue", json=body)
            return done.status_code, done.json()["error"]["param"]

        name = f"batch_{batch.id.hex}"
        assert await refused(batch=f"batch_{'0' * 32}") == (404, "batch")
        assert await refused(batch=str(batch.id)) == (404, "batch")
        assert await refused(batch=name, lines=[]) == (400, "lines")
        assert await refused(batch=name, lines=list(range(1001))) == (400, "lines")
        assert (await refused(batch=name, lines=["1"]))[0] == 400
        assert (await client.get(DEAD, params={"tenant": "nobody"})).status_code == 404
        assert (await client.get(DEAD, params={"batch": "x"})).status_code == 404
