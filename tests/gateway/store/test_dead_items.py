"""Items that killed their workers, on a real PostgreSQL: seen, counted, and run again."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from gateway.domain.batch import BatchState
from gateway.domain.page import PageRequest
from gateway.store import Store
from gateway.store.batch_queue import MAX_DEATHS
from tests.gateway.admin_app import ACTOR
from tests.gateway.store.batch_rows import (
    LEASE_S,
    alter,
    claimed,
    ended,
    killed,
    lines_of,
    running_batch,
    seen,
)

pytestmark = pytest.mark.anyio


async def organisation_of(store: Store) -> UUID:
    return (await store.organisations.default()).id


async def test_what_kills_its_workers_is_listed_by_batch_and_line(store: Store) -> None:
    """Page by page, with its tenant, its deaths and since when; nothing else of its batch is."""
    ours, theirs = await running_batch(store, 5), await running_batch(store, 2, tenant=1)
    assert await store.dead_items.count() == 0
    assert await killed(store, ours, 3) == [3, 4, 5]
    assert await killed(store, theirs) == [2]
    organisation_id = await organisation_of(store)
    found, request = [], PageRequest(3)
    while True:
        page = await store.dead_items.page(organisation_id, request)
        found += page.data
        if page.next is None:
            break
        request = PageRequest(3, page.next)
    expected = [(ours.id, "acme", line) for line in (3, 4, 5)] + [(theirs.id, "globex", 2)]
    assert [(one.batch_id, one.tenant, one.line) for one in found] == sorted(expected)
    assert {one.num_deaths for one in found} == {MAX_DEATHS}
    assert {one.custom_id for one in found} == {"item-2", "item-3", "item-4", "item-5"}
    assert all(one.since >= ours.created_at for one in found)
    page = await store.dead_items.page(
        organisation_id, PageRequest(9), tenant_id=ours.tenant_id, batch_id=ours.id
    )
    assert [one.line for one in page.data] == [3, 4, 5]
    page = await store.dead_items.page(organisation_id, PageRequest(9), tenant_id=uuid4())
    assert page.data == []
    assert (await store.dead_items.page(uuid4(), PageRequest(9))).data == []
    assert await store.dead_items.count() == 4


async def test_a_tenant_sees_how_many_of_its_batch_wait_for_an_operator(store: Store) -> None:
    """On the batch and in the list, until they run or are dropped."""
    batch, other = await running_batch(store, 3), await running_batch(store, 1)
    await killed(store, batch, 2)
    assert ((await seen(store, batch)).num_dead, (await seen(store, other)).num_dead) == (2, 0)
    page = await store.batches.page(batch.tenant_id, PageRequest(5))
    assert {one.id: one.num_dead for one in page.data} == {batch.id: 2, other.id: 0}


async def test_requeued_items_run_at_once_and_have_one_more_death(store: Store) -> None:
    """With their retries before them again; the next worker that dies of one is its last."""
    batch = await running_batch(store, 3)
    await killed(store, batch, 2)
    await ended(store, await claimed(store, batch, 5))
    organisation_id = await organisation_of(store)

    async def requeue(lines: list[int] | None, limit: int = 9) -> object:
        return await store.dead_items.requeue(ACTOR, organisation_id, batch.id, lines, limit=limit)

    # The first line is done, the third not there.
    assert await requeue([1, 2, 9]) == [2]
    assert await requeue([2]) == []
    [item] = await claimed(store, batch, 5)
    assert (item.run.line, item.num_attempts) == (2, 1)
    await ended(store, [item])
    assert await requeue(None, limit=1) == [3]
    [item] = await store.batch_queue.claim(batch.id, uuid4(), limit=5, lease_s=0)
    await store.batch_queue.take_back(5)
    assert await claimed(store, batch, 5) == []
    [again] = (await store.dead_items.page(organisation_id, PageRequest(9))).data
    assert (again.line, again.num_deaths) == (3, MAX_DEATHS + 1)
    assert await store.dead_items.requeue(ACTOR, organisation_id, uuid4(), None, limit=9) is None
    assert await store.dead_items.requeue(ACTOR, uuid4(), batch.id, None, limit=9) is None


async def test_what_nobody_requeues_expires_with_its_batch(store: Store) -> None:
    """It has its line in the error file, and is not listed any longer."""
    batch = await running_batch(store, 2)
    await killed(store, batch, 2)
    await alter(store, "batches", "expires_at = now()", batch)
    while await store.batch_steps.drop():
        pass
    [over] = await store.batch_steps.to_finalize(5, lease_s=LEASE_S)
    assert await lines_of(store, over) == ([], [1, 2])
    assert await store.dead_items.count() == 0
    now = await seen(store, batch)
    assert (now.num_dead, now.num_dropped, now.state) == (0, 2, BatchState.FINALIZING)
