"""Batches from their input to their files, on a real PostgreSQL and a real directory."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from fakes import ManualClock
from gateway.domain.admin import SYSTEM
from gateway.domain.batch import Batch, BatchBounds, BatchState
from gateway.domain.files import Written
from gateway.domain.price import ANY_MODEL, PriceDraft
from gateway.errors import StorageUnavailable
from gateway.ports import BatchSteps
from gateway.services.batches import BatchUpkeep, Finalizer
from gateway.services.batches.upkeep import RETRY_S
from gateway.store.batch_steps import SqlBatchSteps
from gateway.store.file_storage import DirectoryStorage
from tests.gateway.services.batches.world import World, by_line, requests

pytestmark = pytest.mark.anyio

PASSED = "lease_until = now() - interval '1 second'"


async def test_a_batch_goes_from_its_input_to_its_files(world: World) -> None:
    """It is validated, run, and ends with a file of answers and one of errors, by line."""
    upkeep = world.upkeep()
    batch = await world.submit(requests(9))
    await upkeep.validate()
    batch = await world.seen(batch)
    assert (batch.state, batch.num_items, batch.models) == ("in_progress", 9, ("sim",))
    assert batch.enqueued_tokens == 9 * (10 // 4 + 1 + 4)
    await world.run(batch, 4)
    await world.run(batch, 2, is_error=True)
    await end(upkeep)
    assert (await world.seen(batch)).state is BatchState.IN_PROGRESS
    await world.run(batch, 9)
    await end(upkeep)
    batch = await world.seen(batch)
    assert (batch.state, batch.num_done, batch.num_failed) == (BatchState.COMPLETED, 7, 2)
    output = await world.lines(batch, batch.output_file_id)
    errors = await world.lines(batch, batch.error_file_id)
    assert [line["line"] for line in output] == [1, 2, 3, 4, 7, 8, 9]
    assert [line["line"] for line in errors] == [5, 6]
    assert batch.output_file_id is not None
    file = await world.store.files.get(batch.tenant_id, batch.output_file_id)
    assert file is not None
    assert (file.filename, file.purpose) == (
        f"batch_{batch.id.hex}_output.jsonl",
        "batch_output",
    )
    assert file.expires_at is None


async def test_a_batch_without_errors_has_one_file(world: World) -> None:
    """It says how long it is kept where the batch did."""
    upkeep = world.upkeep()
    batch = await world.submit(requests(2), output_expires_after_s=3600)
    await upkeep.validate()
    await world.run(batch, 2)
    await end(upkeep)
    batch = await world.seen(batch)
    assert batch.error_file_id is None
    assert batch.output_file_id is not None
    file = await world.store.files.get(batch.tenant_id, batch.output_file_id)
    assert file is not None
    assert file.expires_at is not None
    assert abs((file.expires_at - file.created_at).total_seconds() - 3600) < 60


@pytest.mark.parametrize("how", ["cancelled", "expired"])
async def test_what_was_not_run_is_in_the_error_file(world: World, how: str) -> None:
    """Beside what failed, in line order, with OpenAI's code; every line is in one of the files."""
    upkeep = world.upkeep()
    batch = await world.submit(requests(8))
    await upkeep.validate()
    await world.run(batch, 2)
    await world.run(batch, 1, is_error=True)
    if how == "cancelled":
        await world.store.batches.cancel(batch.tenant_id, batch.id)
    else:
        await world.alter(batch, "expires_at = now()")
    await end(upkeep)
    batch = await world.seen(batch)
    assert batch.state == how
    output = await world.lines(batch, batch.output_file_id)
    errors = await world.lines(batch, batch.error_file_id)
    assert by_line(output) == ["r1", "r2"]
    assert by_line(errors) == [f"r{line}" for line in range(3, 9)]
    last = errors[-1]
    assert last.keys() == {"id", "custom_id", "response", "error"}
    assert last["id"].startswith("batch_req_")
    assert (last["response"], last["error"]["code"]) == (None, f"batch_{how}")


async def test_each_result_is_one_line_to_who_reads_text(world: World) -> None:
    """Characters that JSON leaves alone and text ends lines at are escaped, and mean the same."""
    ends = "one\u2028two\u2029three\x85four é"
    upkeep = world.upkeep()
    named = requests(2).replace(b'"r2"', json.dumps(ends).encode())
    batch = await world.submit(named)
    await upkeep.validate()
    await world.run(batch, 1, text=ends)
    await world.store.batches.cancel(batch.tenant_id, batch.id)
    await end(upkeep)
    batch = await world.seen(batch)
    [answered] = await world.lines(batch, batch.output_file_id)
    [dropped] = await world.lines(batch, batch.error_file_id)
    assert (answered["text"], dropped["custom_id"]) == (ends, ends)


async def test_the_price_of_the_day_is_kept(world: World) -> None:
    """A batch names the version that held as it started, whatever comes after it."""
    organisation = await world.store.organisations.default()
    draft = PriceDraft(
        model=ANY_MODEL, input_nano_per_mtok=1, cached_nano_per_mtok=1, output_nano_per_mtok=1
    )
    price = await world.store.prices.add(SYSTEM, organisation.id, draft)
    upkeep = world.upkeep()
    await upkeep._validator._prices.refresh()
    batch = await world.submit(requests(1))
    await upkeep.validate()
    assert (await world.seen(batch)).price_ids == {"sim": price.id}


@pytest.mark.parametrize(
    ("data", "codes"),
    [
        (b"", ["empty_file"]),
        (requests(1) + requests(1), ["duplicate_custom_id"]),
        (requests(1, model="no") + b"{", ["model_not_found", "invalid_json_line"]),
        (b"\x1f\x8b\x08\x00", ["unsupported_file_format"]),
        (b"x" * 5_000_000 + b"\n" + requests(1), ["line_too_long"]),
    ],
)
async def test_bad_input_fails_the_batch_and_leaves_nothing(
    world: World, data: bytes, codes: list[str]
) -> None:
    """It says what is wrong with which line, and has no items and no files."""
    batch = await world.submit(data)
    await world.upkeep().validate()
    batch = await world.seen(batch)
    assert batch.state is BatchState.FAILED
    assert [error.code for error in batch.errors] == codes
    assert (batch.num_items, batch.output_file_id, batch.error_file_id) == (0, None, None)
    assert await num_items(world, batch) == 0


async def test_one_request_too_many_fails_the_batch(world: World) -> None:
    """A file of 50,001 requests is refused at the last of them, and no item of it is kept."""
    batch = await world.submit(requests(50_001))
    await world.upkeep().validate()
    [error] = (await world.seen(batch)).errors
    assert (error.code, error.line) == ("too_many_tasks", 50_001)
    assert await num_items(world, batch) == 0


async def test_an_input_that_another_process_has_is_left_to_it(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A storage that is not mounted here fails nobody's batch, and the log names the setting."""
    batch = await world.submit(requests(1))
    whole, world.storage = world.storage, DirectoryStorage(tmp_path / "not-mounted")
    await world.upkeep().validate()
    world.storage.close()
    assert (await world.seen(batch)).state is BatchState.VALIDATING
    assert "SLUICE_FILE_STORAGE is to be the same" in caplog.text
    world.storage = whole
    await world.upkeep().validate()
    assert (await world.seen(batch)).state is BatchState.IN_PROGRESS


async def test_models_of_another_gateway_are_left_to_it(world: World) -> None:
    """Who lacks the model passes the batch over, and goes on with the tenant's others."""
    lacks = world.upkeep(model="other", elsewhere=lambda names: set(names) == {"sim"})
    batch, mistyped = await world.submit(requests(1)), await world.submit(requests(1, model="smi"))
    await lacks.validate()
    assert (await world.seen(batch)).state is BatchState.VALIDATING
    [error] = (await world.seen(mistyped)).errors
    assert error.code == "model_not_found"
    await world.upkeep().validate()
    assert (await world.seen(batch)).state is BatchState.IN_PROGRESS


async def test_what_is_left_to_others_is_tried_again_once_nobody_has_it(world: World) -> None:
    """After ten seconds, and then it fails as any: the gateway that had the model is gone."""
    served, clock = {"sim"}, ManualClock()
    lacks = world.upkeep(model="other", elsewhere=served.issuperset, clock=clock)
    batch = await world.submit(requests(1))
    await lacks.validate()
    served.clear()
    await lacks.validate()
    assert (await world.seen(batch)).state is BatchState.VALIDATING
    clock.now += RETRY_S
    await lacks.validate()
    assert (await world.seen(batch)).state is BatchState.FAILED


async def test_an_input_that_is_gone_fails_the_batch(world: World) -> None:
    """Its bytes are not there any more: after five minutes nobody tries again."""
    batch = await world.submit(requests(1))
    await world.storage.remove([batch.draft.input_file_id])
    await world.alter(batch, "created_at = now() - interval '6 minutes'")
    await world.upkeep().validate()
    [error] = (await world.seen(batch)).errors
    assert error.code == "file_not_found"


async def test_a_batch_beyond_the_enqueued_bound_fails(world: World) -> None:
    """As OpenAI's do, with its code; once others have ended it may start."""
    world.bounds = BatchBounds(max_enqueued_tokens=15)
    upkeep = world.upkeep()
    first = await world.submit(requests(2))
    await upkeep.validate()
    second = await world.submit(requests(2))
    await upkeep.validate()
    [error] = (await world.seen(second)).errors
    assert error.code == "token_limit_exceeded"
    assert await num_items(world, second) == 0
    await world.run(first, 2)
    third = await world.submit(requests(2))
    await upkeep.validate()
    assert (await world.seen(third)).state is BatchState.IN_PROGRESS


async def test_two_gateways_move_each_batch_on_once(world: World) -> None:
    """Twenty batches, two gateways at once: each starts and ends once, with one file."""
    first, second = world.upkeep(), world.upkeep()
    batches = [await world.submit(requests(3), tenant=i % 2) for i in range(20)]
    await asyncio.gather(first.validate(), second.validate())
    for batch in batches:
        assert (await world.seen(batch)).state is BatchState.IN_PROGRESS
        await world.run(batch, 3)
    await asyncio.gather(end(first), end(second))
    for batch in batches:
        batch = await world.seen(batch)
        assert batch.state is BatchState.COMPLETED
        assert by_line(await world.lines(batch, batch.output_file_id)) == ["r1", "r2", "r3"]
    assert await num_output_files(world) == 20


async def test_a_dead_gateways_validation_is_taken_over(world: World) -> None:
    """What it had added is overwritten, and it starts nothing if it comes back."""
    batch = await world.submit(requests(5))
    steps = world.store.batch_steps
    [taken] = await steps.to_validate(1, lease_s=60)
    upkeep = world.upkeep()
    await upkeep.validate()
    assert (await world.seen(batch)).state is BatchState.VALIDATING
    await world.alter(batch, PASSED)
    await asyncio.gather(upkeep.validate(), upkeep._validator.validate(taken))
    batch = await world.seen(batch)
    assert (batch.state, batch.num_items) == (BatchState.IN_PROGRESS, 5)
    assert await num_items(world, batch) == 5


class _Killed(Exception):
    """What ends a gateway in a test."""


@pytest.mark.parametrize("place", range(1, 6))
async def test_a_crash_while_finalising_loses_no_line(world: World, place: int) -> None:
    """Wherever it comes, the next gateway ends the batch: one of each file, each line in one."""
    batch = await world.submit(requests(6))
    upkeep = world.upkeep()
    await upkeep.validate()
    await world.run(batch, 2)
    await world.run(batch, 2, is_error=True)
    await world.store.batches.cancel(batch.tenant_id, batch.id)
    await world.store.batch_steps.drop()
    [over] = await world.store.batch_steps.to_finalize(1, lease_s=60)
    calls = itertools.count(1)

    def dying(target: object) -> object:
        """Let calls pass, but die before one of them."""

        class Dying:
            def __getattr__(self, name: str) -> object:
                if next(calls) == place:
                    raise _Killed
                return getattr(target, name)

        return Dying()

    mortal = Finalizer(
        dying(world.store.batch_steps),  # type: ignore[arg-type]
        dying(world.storage),  # type: ignore[arg-type]
    )
    with pytest.raises(_Killed):
        await mortal.finalize(over)
    await world.alter(batch, PASSED)
    await end(upkeep)
    batch = await world.seen(batch)
    assert batch.state is BatchState.CANCELLED
    output = by_line(await world.lines(batch, batch.output_file_id))
    errors = by_line(await world.lines(batch, batch.error_file_id))
    assert (output, errors) == (["r1", "r2"], ["r3", "r4", "r5", "r6"])
    assert await num_output_files(world) == 2


async def test_two_that_finalise_one_batch_agree(world: World) -> None:
    """The slow one, taken for dead, neither fails nor makes a second file."""
    batch = await world.submit(requests(3))
    upkeep = world.upkeep()
    await upkeep.validate()
    await world.run(batch, 3)
    steps = world.store.batch_steps
    [over] = await steps.to_finalize(1, lease_s=60)
    finalizer = Finalizer(steps, world.storage)
    await asyncio.gather(finalizer.finalize(over), finalizer.finalize(over))
    batch = await world.seen(batch)
    assert by_line(await world.lines(batch, batch.output_file_id)) == ["r1", "r2", "r3"]
    assert await num_output_files(world) == 1


class _Slow(DirectoryStorage):
    """Lets somebody else go first before it writes."""

    first: Callable[[], Awaitable[None]]

    async def write(self, *given: Any, **more: Any) -> Written:
        await self.first()
        return await super().write(*given, **more)


async def test_a_finaliser_that_was_taken_for_dead_spoils_nothing(world: World) -> None:
    """What it writes, once the results are gone, is neither the batch's file nor left behind."""
    batch = await world.submit(requests(3))
    upkeep = world.upkeep()
    await upkeep.validate()
    await world.run(batch, 3)
    steps = world.store.batch_steps
    [over] = await steps.to_finalize(1, lease_s=60)
    slow = _Slow(world.storage._root, min_free_bytes=0)
    slow.first = partial(Finalizer(steps, world.storage).finalize, over)
    await Finalizer(steps, slow).finalize(over)
    slow.close()
    batch = await world.seen(batch)
    assert by_line(await world.lines(batch, batch.output_file_id)) == ["r1", "r2", "r3"]
    assert await num_output_files(world) == 1
    kept = {path.name for path in world.storage._root.rglob("*") if path.is_file()}
    assert kept == {batch.draft.input_file_id.hex, (batch.output_file_id or batch.id).hex}


class _FullAfter(DirectoryStorage):
    """Takes one file, and has no room for a second one."""

    num_written = 0

    async def write(self, *given: Any, **more: Any) -> Written:
        self.num_written += 1
        if self.num_written == 2:
            raise StorageUnavailable
        return await super().write(*given, **more)


async def test_a_file_whose_sister_cannot_be_written_is_not_left(world: World) -> None:
    """Each try writes both anew: what was left of every one would fill the disk."""
    batch = await world.submit(requests(4))
    upkeep = world.upkeep()
    await upkeep.validate()
    await world.run(batch, 2)
    await world.run(batch, 2, is_error=True)
    steps = world.store.batch_steps
    [over] = await steps.to_finalize(1, lease_s=60)
    full = _FullAfter(world.storage._root, min_free_bytes=0)
    with pytest.raises(StorageUnavailable):
        await Finalizer(steps, full).finalize(over)
    kept = {path.name for path in world.storage._root.rglob("*") if path.is_file()}
    assert kept == {batch.draft.input_file_id.hex}
    await Finalizer(steps, full).finalize(over)
    full.close()
    batch = await world.seen(batch)
    assert by_line(await world.lines(batch, batch.output_file_id)) == ["r1", "r2"]


class _PartlyAway(DirectoryStorage):
    """Cannot read one file for now."""

    away: UUID

    def read(self, file_id: UUID, **bounds: Any) -> AsyncGenerator[bytes, None]:
        if file_id == self.away:
            raise StorageUnavailable
        return super().read(file_id, **bounds)


async def test_a_storage_that_is_away_costs_a_batch_time_alone(world: World) -> None:
    """It stays as it is, holds up no other, and goes on once its lease has passed."""
    away, good = [await world.submit(requests(1), tenant=tenant) for tenant in (0, 1)]
    storage = _PartlyAway(world.storage._root, min_free_bytes=0)
    storage.away = away.draft.input_file_id
    await replace(world, storage=storage).upkeep().validate()
    storage.close()
    assert (await world.seen(away)).state is BatchState.VALIDATING
    assert (await world.seen(good)).state is BatchState.IN_PROGRESS
    await world.alter(away, PASSED)
    await world.upkeep().validate()
    assert (await world.seen(away)).state is BatchState.IN_PROGRESS


class _Stuck(DirectoryStorage):
    """Never gets to the end of one file."""

    stuck: UUID

    async def read(self, file_id: UUID, **bounds: Any) -> AsyncGenerator[bytes, None]:
        if file_id == self.stuck:
            await asyncio.Event().wait()
        async for chunk in super().read(file_id, **bounds):
            yield chunk


async def test_a_tenants_queue_is_nobody_elses(world: World) -> None:
    """While a tenant's batch takes forever, and others of it wait, another tenant's starts."""
    slow, *queued = [await world.submit(requests(1)) for _ in range(5)]
    storage = _Stuck(world.storage._root, min_free_bytes=0)
    storage.stuck = slow.draft.input_file_id
    upkeep = replace(world, storage=storage).upkeep()
    async with upkeep.running(), asyncio.timeout(60):
        while not await _count(world, "batches WHERE lease_until IS NOT NULL"):
            await asyncio.sleep(0.02)
        other = await world.submit(requests(1), tenant=1)
        upkeep.wake()
        while (await world.seen(other)).state is not BatchState.IN_PROGRESS:
            await asyncio.sleep(0.02)
        assert [(await world.seen(batch)).state for batch in queued] == ["validating"] * 4
    storage.close()


async def test_it_is_looked_after_while_it_runs(world: World) -> None:
    """Woken, it takes a batch from its input to its file without being asked again."""
    upkeep = world.upkeep()
    async with upkeep.running(), asyncio.timeout(60):
        batch = await world.submit(requests(2))
        upkeep.wake()
        while (await world.seen(batch)).state is not BatchState.IN_PROGRESS:
            await asyncio.sleep(0.02)
        await world.run(batch, 2)
        upkeep.wake()
        while (await world.seen(batch)).state is not BatchState.COMPLETED:
            await asyncio.sleep(0.02)


class _Counted:
    """Counts what is asked of the steps of batches, by name."""

    def __init__(self, steps: SqlBatchSteps) -> None:
        self._steps = steps
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> object:
        self.asked[name] += 1
        return getattr(self._steps, name)


async def test_nothing_is_missed_and_nothing_asked_in_vain(world: World) -> None:
    """Unwoken, a batch is taken to its end by looks alone; while none is open they are all."""
    counted = _Counted(world.store.batch_steps)
    upkeep = world.upkeep(poll_s=0.02)
    upkeep._steps = cast(BatchSteps, counted)
    async with upkeep.running(), asyncio.timeout(60):
        while counted.asked["due"] < 5:
            await asyncio.sleep(0.02)
        assert set(counted.asked) == {"due"}
        batch = await world.submit(requests(2))
        while (await world.seen(batch)).state is not BatchState.IN_PROGRESS:
            await asyncio.sleep(0.02)
        await world.alter(batch, "expires_at = now()")
        while (await world.seen(batch)).state is not BatchState.EXPIRED:
            await asyncio.sleep(0.02)


async def test_dropping_gives_way_to_another_tenants(world: World) -> None:
    """Of two cancelled batches, a slice of each is dropped in turn, not one and then the other."""
    batches = [await world.submit(requests(4), tenant=i) for i in (0, 1)]
    await world.upkeep().validate()
    steps = SqlBatchSteps(world.store.database, slice_items=3)
    for batch in batches:
        await world.store.batches.cancel(batch.tenant_id, batch.id)
    assert await steps.drop() == 6
    for batch in batches:
        assert (await world.seen(batch)).num_dropped == 3
    assert await steps.drop() == 2


async def end(upkeep: BatchUpkeep) -> None:
    """Drop what is to be dropped, and finalise what is over then."""
    await upkeep.drop()
    await upkeep.finalize()


async def num_items(world: World, batch: Batch) -> int:
    return await _count(world, f"batch_items WHERE batch_id = '{batch.id}'")


async def num_output_files(world: World) -> int:
    return await _count(world, "files WHERE purpose = 'batch_output'")


async def _count(world: World, what: str) -> int:
    async with world.store.database.platform() as connection:
        counted = await connection.exec_driver_sql(f"SELECT count(*) FROM {what}")
        return int(counted.scalar_one())
