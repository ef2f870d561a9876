"""The way of batches on a real PostgreSQL: each step is taken once, and no line is lost."""

from __future__ import annotations

import asyncio
import itertools
import random
from uuid import uuid4

import pytest
from sqlalchemy import text

from gateway.domain.batch import Batch, BatchBounds, BatchState, BatchStep, ClaimedItem, LineError
from gateway.errors import EnqueuedTokensExceeded
from gateway.store import Store
from gateway.store.batch_statements import ONE_START_A_TENANT, RESULTS
from gateway.store.batch_steps import SqlBatchSteps
from gateway.store.database import Database
from tests.gateway.store.batch_rows import (
    LEASE_S,
    alter,
    claimed,
    draft_of,
    ended,
    lines_of,
    most_rows,
    new_items,
    num_rows,
    running_batch,
    seen,
    whole_file,
)

pytestmark = pytest.mark.anyio

PASSED = "lease_until = now() - interval '1 second'"


async def test_a_batch_is_validated_by_one(store: Store) -> None:
    """Of many that ask at once one gets it, until the lease passes: then the next who asks."""
    draft = await draft_of(store)
    await store.batches.create(draft)
    steps = store.batch_steps
    asked = await asyncio.gather(*(steps.to_validate(5, lease_s=LEASE_S) for _ in range(6)))
    assert sum(len(batches) for batches in asked) == 1
    assert await steps.to_validate(5, lease_s=LEASE_S) == []
    await alter(store, "batches", PASSED, draft)
    assert len(await steps.to_validate(5, lease_s=LEASE_S)) == 1
    await alter(store, "batches", PASSED, draft)
    assert await steps.hold(draft.id, lease_s=LEASE_S)
    assert await steps.to_validate(5, lease_s=LEASE_S) == []


async def test_one_batch_of_a_tenant_is_worked_on_at_a_time(store: Store) -> None:
    """However many a tenant has and had first, another's is given out beside one of them."""
    first, second, *_ = [await store.batches.create(await draft_of(store)) for _ in range(4)]
    other = await store.batches.create(await draft_of(store, tenant=1))
    given = await store.batch_steps.to_validate(9, lease_s=LEASE_S)
    assert {batch.id for batch in given} == {first.id, other.id}
    assert await store.batch_steps.to_validate(9, lease_s=LEASE_S) == []
    # What was tried already comes after what was not.
    await alter(store, "batches", PASSED, first)
    [after] = await store.batch_steps.to_validate(1, lease_s=LEASE_S)
    assert after.id == second.id
    assert await store.batch_steps.start(second.id, {})
    assert len(await store.batch_steps.to_validate(9, lease_s=LEASE_S)) == 1


async def test_tenants_take_turns_whoever_has_more_waiting(store: Store) -> None:
    """One that has three waiting since before waits for another's one, at each step."""
    steps = store.batch_steps
    mine = [await draft_of(store) for _ in range(3)]
    other = await draft_of(store, tenant=1)
    for draft in (*mine, other):
        await store.batches.create(draft)
        await steps.add_items(draft.id, new_items(1))
    turns = [mine[0].id, other.id, mine[1].id, mine[2].id]
    validated, finalized = [], []
    for _ in turns:
        [batch] = await steps.to_validate(1, lease_s=LEASE_S)
        validated.append(batch.id)
        assert await steps.start(batch.id, {})
    for draft in (*mine, other):
        await ended(store, await claimed(store, await seen(store, draft)))
    for _ in turns:
        [batch] = await steps.to_finalize(1, lease_s=LEASE_S)
        finalized.append(batch.id)
        assert await steps.finish(batch.id, output=None, error=None)
    assert validated == turns
    assert finalized == turns


async def test_what_is_due_is_what_each_step_finds(store: Store) -> None:
    """Whatever a batch's state, window, items and lease: the one question knows, the drop too."""
    steps = store.batch_steps
    leases = ("NULL", "now() + interval '1 hour'", "now() - interval '1 hour'")
    windows = ("now() + interval '1 hour'", "now() - interval '1 hour'")
    states = ("validating", "in_progress", "cancelling", "finalizing")
    found = set()
    for state, window, num_over, lease in itertools.product(states, windows, (0, 2), leases):
        batch = await running_batch(store, 2)
        changes = f"state = '{state}', expires_at = {window}, num_dropped = {num_over}"
        changes += f", cancelling_at = now(), lease_until = {lease}"
        await alter(store, "batches", changes, batch)
        due = set(await steps.due())
        find = {
            BatchStep.VALIDATE: await steps.to_validate(1, lease_s=0),
            BatchStep.FINALIZE: await steps.to_finalize(1, lease_s=0),
        }
        await alter(store, "batches", changes, batch)
        find[BatchStep.DROP] = await steps.drop()
        assert due == {step for step, did in find.items() if did}, changes
        found |= due
        await alter(store, "batches", "ended_at = now()", batch)
        assert not await steps.due()
    assert found == set(BatchStep)


async def test_items_added_twice_are_there_once(store: Store) -> None:
    """A second try at a batch overwrites the items of the first, and starts with them alone."""
    draft = await draft_of(store)
    await store.batches.create(draft)
    await store.batch_steps.add_items(draft.id, new_items(3, tokens=1))
    await store.batch_steps.add_items(draft.id, new_items(5, tokens=7))
    price_id = uuid4()
    assert await store.batch_steps.start(draft.id, {"sim": price_id}, models=["sim"])
    batch = await seen(store, draft)
    assert (batch.state, batch.num_items, batch.enqueued_tokens) == ("in_progress", 5, 35)
    assert (batch.price_ids, batch.models) == ({"sim": price_id}, ("sim",))
    assert batch.in_progress_at is not None


async def test_a_batch_that_runs_takes_no_items(store: Store) -> None:
    """Who validates it still, long after its lease, changes nothing and starts nothing."""
    batch = await running_batch(store, 2)
    await store.batch_steps.add_items(batch.id, new_items(4, tokens=99))
    assert not await store.batch_steps.start(batch.id, {})
    await store.batch_steps.fail(batch.id, [LineError("empty_file", "late")])
    assert await seen(store, batch) == batch
    assert await num_rows(store, batch) == 2


async def test_a_failed_batch_says_why_and_has_no_items(store: Store) -> None:
    """Its errors are as they were told, whatever bytes are in them; nothing else is left."""
    draft = await draft_of(store)
    await store.batches.create(draft)
    await store.batch_steps.add_items(draft.id, new_items(3))
    errors = [LineError("invalid_url", "no \x00 here", 7, "url"), LineError("empty_file", "none")]
    await store.batch_steps.fail(draft.id, errors)
    batch = await seen(store, draft)
    assert (batch.state, batch.num_items) == (BatchState.FAILED, 0)
    assert batch.errors == [LineError("invalid_url", "no \ufffd here", 7, "url"), errors[1]]
    assert batch.ended_at is not None
    assert await num_rows(store, draft) == 0


async def test_the_enqueued_bounds_hold_when_batches_start_at_once(store: Store) -> None:
    """Of six batches that each fit, as many start as fit together; another tenant's all do."""
    drafts = [await draft_of(store) for _ in range(6)] + [await draft_of(store, tenant=1)]
    for draft in drafts:
        await store.batches.create(draft)
        await store.batch_steps.add_items(draft.id, new_items(4, tokens=10))
    for bounds in (BatchBounds(max_enqueued_tokens=90), BatchBounds(max_items=8)):
        # A gateway for each: one alone lets two start at once.
        gateways = [(SqlBatchSteps(store.database), draft) for draft in drafts]
        starts = [steps.start(draft.id, {}, bounds=bounds) for steps, draft in gateways]
        begun = await asyncio.gather(*starts, return_exceptions=True)
        refused = [one for one in begun if isinstance(one, EnqueuedTokensExceeded)]
        assert len(refused) == 4
    [*_, other] = drafts
    assert (await seen(store, other)).state is BatchState.IN_PROGRESS


async def test_a_tenants_starts_wait_for_each_other(store: Store) -> None:
    """Beside a start of its tenant a batch does not begin, as each would find room for itself."""
    draft = await draft_of(store)
    await store.batches.create(draft)
    await store.batch_steps.add_items(draft.id, new_items(1))
    async with store.database.platform() as other:
        await other.execute(ONE_START_A_TENANT, {"tenant_id": draft.tenant_id})
        starting = asyncio.create_task(store.batch_steps.start(draft.id, {}))
        await asyncio.wait([starting], timeout=0.3)
        assert not starting.done()
    assert await starting


async def test_what_is_over_waits_with_no_tokens(store: Store) -> None:
    """Results, cancelled and expired items each lower what the tenant's batches wait with."""
    batch = await running_batch(store, 6)
    assert batch.enqueued_tokens == 60
    await ended(store, await claimed(store, batch, 2))
    await ended(store, await claimed(store, batch, 1), is_error=True)
    assert (await seen(store, batch)).enqueued_tokens == 30
    await store.batches.cancel(batch.tenant_id, batch.id)
    assert await store.batch_steps.drop() == 3
    batch = await seen(store, batch)
    assert (batch.enqueued_tokens, batch.num_done, batch.num_failed) == (0, 2, 1)
    assert batch.num_dropped == 3


async def test_what_runs_may_end_after_a_cancellation(store: Store) -> None:
    """Only what has not begun is dropped; what is given back then is dropped as well."""
    batch = await running_batch(store, 4)
    kept, back = await claimed(store, batch, 2)
    await store.batches.cancel(batch.tenant_id, batch.id)
    assert await store.batch_steps.drop() == 2
    assert await store.batch_steps.to_finalize(5, lease_s=LEASE_S) == []
    await store.batch_queue.give_back([back.run], is_unharmed=True)
    assert await store.batch_steps.drop() == 1
    await ended(store, [kept])
    [batch] = await store.batch_steps.to_finalize(5, lease_s=LEASE_S)
    assert batch.state is BatchState.CANCELLING
    assert await lines_of(store, batch) == ([kept.run.line], sorted({1, 2, 3, 4} - {kept.run.line}))
    assert await store.batch_steps.finish(batch.id, output=None, error=None)
    assert (await seen(store, batch)).state is BatchState.CANCELLED


async def test_what_runs_too_long_after_the_window_is_dropped(store: Store) -> None:
    """Its run has lost it: a result that comes later is not stored, and bills nothing."""
    batch = await running_batch(store, 2)
    [item] = await claimed(store, batch)
    await alter(store, "batches", "expires_at = now()", batch)
    assert await store.batch_steps.drop() == 1
    patient = SqlBatchSteps(store.database, grace_s=0.0)
    assert await patient.drop() == 1
    await ended(store, [item])
    [batch] = await store.batch_steps.to_finalize(5, lease_s=LEASE_S)
    assert (batch.num_done, batch.num_dropped, batch.output_tokens) == (0, 2, 0)
    assert await store.batch_steps.finish(batch.id, output=None, error=whole_file(batch))
    assert (await seen(store, batch)).state is BatchState.EXPIRED


async def test_what_may_still_end_keeps_no_other_batch_from_being_dropped(store: Store) -> None:
    """Batches that wait for what runs of them alone are not in the way of those to be dropped."""
    for nth in range(9):
        batch = await running_batch(store, 2, tenant=nth % 2)
        if nth < 8:
            await claimed(store, batch, limit=2)
        await store.batches.cancel(batch.tenant_id, batch.id)
    assert await store.batch_steps.drop() == 2
    assert (await seen(store, batch)).num_dropped == 2
    patient = SqlBatchSteps(store.database, grace_s=0)
    assert await patient.drop() == 16


async def test_a_window_that_passes_before_validation_ends_the_batch(store: Store) -> None:
    """It expires with no items, and nobody is given it to validate."""
    draft = await draft_of(store)
    await store.batches.create(draft)
    await store.batch_steps.add_items(draft.id, new_items(3))
    await alter(store, "batches", "expires_at = now()", draft)
    assert await store.batch_steps.to_validate(5, lease_s=LEASE_S) == []
    assert await store.batch_steps.drop() == 1
    assert await store.batch_steps.drop() == 0
    batch = await seen(store, draft)
    assert (batch.state, batch.num_items) == (BatchState.EXPIRED, 0)
    assert await num_rows(store, draft) == 0


async def test_a_batch_is_finished_once(store: Store) -> None:
    """Of two that finalise it, as the first was taken for dead, one finishes it."""
    batch = await running_batch(store, 2)
    assert await store.batch_steps.to_finalize(5, lease_s=LEASE_S) == []
    await ended(store, await claimed(store, batch, 2))
    [first] = await store.batch_steps.to_finalize(5, lease_s=LEASE_S)
    assert (first.state, first.finalizing_at is None) == (BatchState.FINALIZING, False)
    assert await store.batch_steps.to_finalize(5, lease_s=LEASE_S) == []
    await alter(store, "batches", PASSED, batch)
    [second] = await store.batch_steps.to_finalize(5, lease_s=LEASE_S)
    assert second.finalizing_at == first.finalizing_at
    files = [whole_file(batch) for _ in range(2)]
    finishes = [store.batch_steps.finish(batch.id, output=file, error=None) for file in files]
    assert sorted(await asyncio.gather(*finishes)) == [False, True]
    batch = await seen(store, batch)
    [kept] = await store.files.known([file.draft.id for file in files])
    assert (batch.state, batch.output_file_id) == (BatchState.COMPLETED, kept)
    assert (batch.num_items, batch.num_done, await num_rows(store, batch)) == (2, 2, 0)
    assert await store.batches.cancel(batch.tenant_id, batch.id) == batch


async def test_a_part_of_the_results_reads_no_more_than_it_gives(
    store: Store, owner: Database
) -> None:
    """Of a batch that is newer than the tables' statistics too, which expect nothing of it."""
    known = await running_batch(store, 400)
    await ended(store, await claimed(store, known, 400))
    async with owner.as_itself() as connection:
        await connection.execute(text("ANALYZE batch_items, batch_results"))
    batch = await running_batch(store, 400)
    await ended(store, await claimed(store, batch, 400))
    given = {"batch_id": batch.id, "after": 0, "limit": 100, "max_bytes": 1 << 20}
    explained = text(f"EXPLAIN (ANALYZE, FORMAT JSON) {RESULTS.text}")
    async with store.database.platform() as connection:
        [found] = await connection.scalar(explained, {**given, "is_error": False})
    assert most_rows(found["Plan"]) <= 400


async def test_results_come_in_parts_that_are_bounded(store: Store) -> None:
    """However large they are: a part has about a megabyte, or one that is larger, in line order."""
    batch = await running_batch(store, 5)
    await ended(store, await claimed(store, batch, 5))
    body = "body = decode(repeat('ab', 3 << 17), 'hex')"
    await alter(store, "batch_results", body, batch)
    parts = [part async for part in store.batch_steps.results(batch.id, is_error=False)]
    assert [[one.run.line for one in part] for part in parts] == [[1, 2, 3], [4, 5]]


@pytest.mark.parametrize("seed", range(8))
async def test_every_line_ends_once_whatever_happens(store: Store, seed: int) -> None:
    """Workers that die, a cancellation or the window at any moment: output + error = total."""
    draw, num_items = random.Random(seed), 12
    batch = await running_batch(store, num_items)
    steps = SqlBatchSteps(store.database, grace_s=0.0 if seed % 2 else 600.0)
    held: list[ClaimedItem] = []
    for _ in range(30):
        await _happen(store, steps, batch, draw, held)
        now = await seen(store, batch)
        assert now.num_done + now.num_failed + now.num_dropped <= num_items
    if draw.random() < 0.5:
        await store.batches.cancel(batch.tenant_id, batch.id)
    else:
        await alter(store, "batches", "expires_at = now()", batch)
    await alter(store, "batch_items", "run_after = now()", batch)
    await ended(store, held)
    await _take_back(store, batch)
    while await steps.drop():
        pass
    [over] = await steps.to_finalize(5, lease_s=LEASE_S)
    good, bad = await lines_of(store, over)
    assert sorted(good + bad) == list(range(1, num_items + 1))
    assert (over.num_done, over.num_failed + over.num_dropped) == (len(good), len(bad))
    assert over.enqueued_tokens == 0


async def _happen(
    store: Store, steps: SqlBatchSteps, batch: Batch, draw: random.Random, held: list[ClaimedItem]
) -> None:
    """Let one thing happen of what may; `held` is what workers believe to hold."""
    what = draw.choices(
        ["claim", "end", "again", "give back", "die", "drop", "cancel", "window"],
        weights=[8, 5, 2, 2, 3, 2, 0.3, 0.3],
    )[0]
    some = [held.pop(draw.randrange(len(held))) for _ in range(min(len(held), 2))]
    if what == "claim":
        held += [*some, *await claimed(store, batch, draw.randint(1, 3))]
    elif what == "end":
        await ended(store, some, is_error=draw.random() < 0.3)
    elif what == "again":
        await ended(store, some)
        held += some
    elif what == "give back":
        await store.batch_queue.give_back([one.run for one in some], is_unharmed=False)
    elif what == "die":
        await _take_back(store, batch)
        held += some
    else:
        held += some
    if what == "drop":
        await steps.drop()
    elif what == "cancel":
        await store.batches.cancel(batch.tenant_id, batch.id)
    elif what == "window":
        await alter(store, "batches", "expires_at = now()", batch)


async def _take_back(store: Store, batch: Batch) -> None:
    """Have every lease pass, and what was held go back."""
    async with store.database.platform() as connection:
        await connection.exec_driver_sql(
            f"UPDATE batch_items SET {PASSED} WHERE state = 'running' AND batch_id = '{batch.id}'"
        )
    await store.batch_queue.take_back(100)
