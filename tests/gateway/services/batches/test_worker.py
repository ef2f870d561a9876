"""The worker on fakes: how much it claims, of whom, and what becomes of what it claimed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from gateway.domain.batch import PausedFor
from gateway.domain.usage import ItemRow
from gateway.errors import (
    AuthenticationFailed,
    InternalFailure,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    QuotaExhausted,
)
from gateway.services.batches import BadLine, read_line
from gateway.services.batches.worker_models import STUCK_S
from scheduler.state import Room
from tests.gateway.services.batches.worker_world import World, settled
from tests.gateway.services.quotas.scripted import until
from tests.gateway.usage_rows import usage_row

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("room", "num_claimed"),
    [
        (Room(4, 0, 0, 0, 0.0), 8),
        (Room(4, 1, 0, 0, 0.5), 6),
        (Room(4, 4, 0, 0, 0.5), 0),
        (Room(4, 1, 1, 0, 0.5), 0),
        (Room(4, 1, 0, 0, 0.95), 0),
    ],
)
async def test_twice_the_slots_are_claimed_that_others_leave(room: Room, num_claimed: int) -> None:
    """None are while other work waits, or while the memory is nearly full."""
    world = World()
    world.add(100)
    world.rooms = [room]
    await world.turn()
    assert len(world.claims) == world.worker.num_claimed == num_claimed
    await world.turn()
    assert len(world.claims) == num_claimed


async def test_what_is_pressed_claims_nothing() -> None:
    """A process that gives work up elsewhere begins none here."""
    world = World()
    world.worker._is_pressed = lambda model: True
    world.add(5)
    await world.turn()
    assert world.claims == []


async def test_a_field_that_is_there_twice_is_read_as_it_was_validated() -> None:
    """What was good as the batch was made is never a line that nobody can read."""
    world = World()
    world.line = b'{"custom_id":1,"method":"POST","url":"/v1/completions",'
    world.line += b'"body":{"model":"m","prompt":""},"custom_id":"a"}'
    assert read_line(world.line, "/v1/completions").custom_id == "a"
    world.add(1)
    await world.turn()
    await world.end()
    [result] = world.kept
    assert json.loads(result.body)["custom_id"] == "a"


async def test_the_deepest_line_that_is_good_is_read() -> None:
    """However much of the stack is in use where it runs, and was not where it was validated."""

    def line(depth: int) -> bytes:
        body = b'{"model":"m","prompt":%b%b}' % (b"[" * depth, b"]" * depth)
        return b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":%b}' % body

    def deepest() -> bytes:
        """Count down on one stack: what a good line may have depends on it."""
        for depth in range(2000, 0, -1):
            try:
                read_line(line(depth), "/v1/completions")
            except BadLine:
                continue
            return line(depth)
        raise AssertionError("no line is good")

    world = World()
    world.line = await asyncio.to_thread(deepest)
    world.add(1)
    await world.turn()
    await until(lambda: len(world.runs) == 1)
    await world.end()
    assert len(world.kept) == 1


async def test_tenants_share_by_weight_whoever_came_first() -> None:
    """A million items of one do not delay another's by more than what runs."""
    world = World(num_slots=8)
    crowd = world.add(1000)
    for _ in range(5):
        await world.turn()
        await world.end()
    late = world.add(1000, weight=3.0)
    world.worker.woken()
    for _ in range(20):
        await world.turn()
        await world.end()
    # From its first turn on three of four places are its own, not all that it has missed.
    claims = Counter(run.batch_id for run in world.claims[5 * 16 :])
    assert 2.7 <= claims[late.id] / claims[crowd.id] <= 3.3


async def test_long_items_cost_their_tenant_turns() -> None:
    """Shares are of tokens: ten times as long, a tenth as many."""
    world = World(num_slots=8)
    long, short = world.add(3000), world.add(3000)
    for _ in range(150):
        await world.turn()
        await world.end(1000, batch=long)
        await world.end(100, batch=short)
    claims = Counter(run.batch_id for run in world.claims[-1200:])
    assert 7 <= claims[short.id] / claims[long.id] <= 13


async def test_what_an_item_did_cost_is_charged_at_its_end() -> None:
    """Nobody is ahead for having cost more than was expected of him."""
    world = World(num_slots=4)
    long, short = world.add(100), world.add(100)
    await world.turn()
    assert Counter(run.batch_id for run in world.claims) == {long.id: 4, short.id: 4}
    await world.end(10_000, batch=long)
    await world.end(100, batch=short)
    await world.turn()
    assert {run.batch_id for run in world.claims[8:]} == {short.id}


async def test_items_that_are_refused_cost_turns_too() -> None:
    """Who sends a file of large nonsense gets no more turns for it."""
    world = World(num_slots=8)
    junk = world.add(5000, size_bytes=4000)
    good = world.add(5000)
    for _ in range(100):
        await world.turn()
        for order, answered in list(world.runs.values()):
            if order.principal.tenant_id == junk.tenant_id:
                answered.set_exception(InvalidRequest("no"))
            else:
                answered.set_result(1000)
        await settled()
    claims = Counter(run.batch_id for run in world.claims[-800:])
    assert 0.7 <= claims[good.id] / claims[junk.id] <= 1.4


async def test_an_org_has_one_share_for_all_its_tenants() -> None:
    """Three tenants of one org get together what a tenant of none gets."""
    world = World(num_slots=8)
    org = uuid4()
    inside = [world.add(2000, org_id=org) for _ in range(3)]
    alone = world.add(2000)
    for _ in range(80):
        await world.turn()
        await world.end(100)
    claims = Counter(run.batch_id for run in world.claims[-600:])
    assert 0.9 <= sum(claims[one.id] for one in inside) / claims[alone.id] <= 1.1


async def test_a_result_holds_its_lease_until_it_is_stored() -> None:
    """Journaled is not stored: nobody may run it again meanwhile, however long that takes."""
    world = World()
    world.add(1)
    await world.turn()
    await world.end()
    [result] = world.kept
    assert world.worker.num_claimed == 0
    assert world.held == {result.run}
    row = ItemRow.of(usage_row(is_batch=True), result)
    world.worker.written([usage_row(), row])
    assert world.held == set()


async def test_a_run_that_lost_its_item_ends_and_leaves_nothing() -> None:
    """It is cancelled, journals nothing, and gives nothing back: the item is another's."""
    world = World()
    world.add(2)
    await world.turn()
    first, second = world.claims
    world.worker.lost([first])
    await settled()
    assert len(world.runs) == 1
    await world.worker._returns.flush()
    assert (world.kept, world.given) == ([], [])
    assert world.held == {second}


async def test_a_drain_gives_everything_back_unharmed() -> None:
    """What runs is ended, goes back at once, and counts no attempt; nothing is claimed after."""
    world = World()
    world.add(20)
    await world.turn()
    async with world.worker.running():
        pass
    assert sorted(one.run for one in world.given) == sorted(world.claims)
    assert {(one.is_unharmed, one.after_s) for one in world.given} == {(True, 0.0)}
    assert (world.runs, world.held, world.kept) == ({}, set(), [])
    await world.turn()
    assert len(world.claims) == 8


async def test_what_was_just_claimed_is_drained_too() -> None:
    """Also a run that has not taken its first step gives its item back."""
    world = World()
    world.add(20)
    await world.worker.round()
    await world.worker.drain()
    assert len(world.claims) == len(world.given) == 8
    assert world.worker.num_claimed == 0


async def test_an_empty_budget_pauses_a_batch_until_there_is_room() -> None:
    """Its items go back unharmed; after a while one shows how it stands, then all go on."""
    world = World()
    batch = world.add(20)
    world.errors = [QuotaExhausted("used up")]
    await world.turn()
    await world.worker._returns.flush()
    await world.turn()
    assert world.pauses == [(batch.id, PausedFor.BUDGET)]
    assert world.batches[batch.id].paused_because == "Line 1: used up"
    assert len(world.given) == 8
    assert all(one.is_unharmed for one in world.given)
    world.clock.now_s += 20
    await world.turn()
    assert len(world.claims) == 8
    # Still used up: one item asks, and the batch waits again.
    world.clock.now_s += 11
    await world.turn()
    await world.worker._returns.flush()
    await world.turn()
    assert len(world.claims) == 9
    assert [why for _, why in world.pauses] == [PausedFor.BUDGET, None, PausedFor.BUDGET]
    world.errors = []
    world.clock.now_s += 31
    await world.turn()
    assert len(world.runs) == 1
    world.clock.now_s += 2
    await world.turn()
    assert len(world.runs) == 8
    assert world.batches[batch.id].paused_for is None


async def test_a_tenant_whose_storage_is_full_waits_for_room() -> None:
    """Its batches say so, what runs ends, and they go on once something was removed."""
    world = World()
    batch, other = world.add(20), world.add(20)
    await world.turn()
    world.full = {batch.tenant_id}
    world.clock.now_s += 6
    await world.turn()
    await world.turn()
    assert world.pauses == [(batch.id, PausedFor.BUDGET)]
    assert "Delete files" in (world.batches[batch.id].paused_because or "")
    claimed = len([run for run in world.claims if run.batch_id == batch.id])
    for _ in range(5):
        await world.end()
        world.clock.now_s += 31
        await world.turn()
    assert len([run for run in world.claims if run.batch_id == batch.id]) == claimed
    assert len([run for run in world.claims if run.batch_id == other.id]) > 4
    assert len(world.pauses) == 1
    world.full = set()
    await world.end()
    world.clock.now_s += 6
    await world.turn()
    assert world.pauses[1:] == [(batch.id, None)]
    assert len([run for run in world.claims if run.batch_id == batch.id]) == claimed + 1


async def test_many_batches_pause_and_go_on_together() -> None:
    """One statement for all: hundreds of a tenant would hold up whoever waits for a claim."""
    world = World(num_slots=20)
    tenant_id = uuid4()
    for _ in range(40):
        world.add(1, tenant_id=tenant_id)
    world.errors = [QuotaExhausted("used up")]
    await world.turn()
    await world.turn()
    assert ([why for _, why in world.pauses], world.num_pause_calls) == ([PausedFor.BUDGET] * 40, 1)
    world.clock.now_s += 31
    await world.worker.round()
    assert ([why for _, why in world.pauses[40:]], world.num_pause_calls) == ([None] * 40, 2)


async def test_a_claim_looks_at_no_more_batches_than_it_takes_from() -> None:
    """However many a tenant has open: each end of an item has the worker claim again."""
    world = World()
    tenant_id = uuid4()
    for _ in range(100):
        world.add(1, tenant_id=tenant_id)
    await world.turn()
    assert len(world.claims) == 8
    assert world.num_key_lookups == 8


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (AuthenticationFailed(), PausedFor.KEY_REVOKED),
        (ModelNotFound("gone"), PausedFor.MODEL_NOT_FOUND),
    ],
)
async def test_a_key_or_a_model_that_is_gone_pauses_a_batch(
    error: Exception, why: PausedFor
) -> None:
    """Neither is the item's fault; other tenants' batches go on."""
    world = World()
    batch = world.add(5)
    await world.turn()
    await world.fail(error)  # type: ignore[arg-type]
    other = world.add(5)
    world.worker.woken()
    await world.turn()
    assert world.pauses == [(batch.id, why)]
    assert world.kept == []
    assert {run.batch_id for run in world.claims[5:]} == {other.id}


async def test_a_revoked_key_claims_nothing() -> None:
    """What is known before is not tried."""
    world = World()
    batch = world.add(5)
    record = world.records[batch.draft.key_id]
    world.records[batch.draft.key_id] = replace(record, revoked_at=datetime.now(UTC))
    await world.turn()
    await world.turn()
    assert (world.claims, world.pauses) == ([], [(batch.id, PausedFor.KEY_REVOKED)])


async def test_an_item_of_its_own_fault_is_answered_with_it() -> None:
    """It is not tried again, and its answer is an error."""
    world = World()
    world.add(1)
    await world.turn()
    await world.fail(InvalidRequest("no"))
    assert [result.is_error for result in world.kept] == [True]
    assert world.given == []


async def test_an_engine_that_fails_is_tried_four_times() -> None:
    """Each time after a longer while; then the item is answered with an error."""
    world = World()
    world.add(1)
    for _ in range(4):
        world.clock.now_s += 10
        await world.turn()
        assert world.kept == []
        await world.fail(InternalFailure("broke"))
    assert [one.is_unharmed for one in world.given] == [False] * 3
    waits = [one.after_s for one in world.given]
    assert 1.0 <= waits[0] <= 2.0 <= waits[1] <= 4.0 <= waits[2] <= 8.0
    assert [result.is_error for result in world.kept] == [True]


async def test_a_busy_server_costs_no_attempt_however_long() -> None:
    """The item waits longer each time, up to a minute, and never fails of it."""
    world = World()
    world.add(1)
    for _ in range(12):
        world.clock.now_s += 100
        await world.turn()
        await world.fail(Overloaded(retry_after_s=1))
    assert len(world.given) == 12
    assert all(one.is_unharmed for one in world.given)
    assert world.given[0].after_s <= 2.0 < 29.0 <= world.given[-1].after_s <= 60.0
    assert world.kept == []


async def test_a_batch_of_a_model_that_is_elsewhere_is_left_to_others() -> None:
    """Nothing of it is claimed and nobody is told to wait for it; a batch beside it runs."""
    world = World()
    theirs, ours = world.add(5), world.add(5)
    world.batches[theirs.id] = replace(theirs, models=("m", "other"))
    world.batches[ours.id] = replace(ours, models=("m",))
    await world.turn()
    assert {run.batch_id for run in world.claims} == {ours.id}
    assert world.pauses == []


async def test_a_batch_that_nobody_has_the_model_of_says_so() -> None:
    """Once nothing of it has ended for minutes; who lacks the model never has it go on."""
    world = World()
    batch = world.add(5)
    world.batches[batch.id] = replace(batch, models=("other",))
    await world.turn()
    world.clock.now_s += STUCK_S - 1
    await world.turn()
    # One of its items was answered, so somebody has it.
    world.batches[batch.id] = replace(world.batches[batch.id], num_done=1)
    world.clock.now_s += 10
    await world.turn()
    world.clock.now_s += STUCK_S - 1
    await world.turn()
    assert world.pauses == []
    world.clock.now_s += 10
    await world.turn()
    assert world.pauses == [(batch.id, PausedFor.MODEL_NOT_FOUND)]
    for _ in range(20):
        world.clock.now_s += 60
        await world.turn()
    assert (world.claims, len(world.pauses)) == ([], 1)
    world.served.add("other")
    world.clock.now_s += 10
    await world.turn()
    assert world.pauses[1:] == [(batch.id, None)]
    assert len(world.claims) == 1


async def test_an_input_that_is_not_in_this_storage_fails_no_item(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its items go back unharmed for another process, and the log says what to mend, once."""
    world = World()
    batch = world.add(5)
    world.has_input = False
    for _ in range(3):
        await world.turn()
        await world.worker._returns.flush()
        world.clock.now_s += 100
    assert world.kept == []
    assert world.given
    assert all(one.is_unharmed for one in world.given)
    said = [one.getMessage() for one in caplog.records if "SLUICE_FILE_STORAGE" in one.getMessage()]
    assert len(said) == 1
    assert batch.draft.input_file_id.hex in said[0]
