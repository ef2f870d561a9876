"""Records of requests: kept where sampled, bounded in number and bytes, never in anybody's way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

import pytest

from gateway.domain.request_record import Cause, RequestRecord
from gateway.domain.timeline import Phase, Remark, Timeline
from gateway.services.requests.details import MAX_MOMENTS
from gateway.services.requests.recorder import (
    MAX_RECORD_BYTES,
    Dropped,
    RecordBounds,
    RequestRecorder,
)
from tests.gateway.request_records import FakeRecords
from tests.gateway.services.requests.test_causes import BEGAN_S, facts

pytestmark = pytest.mark.anyio

ACME, GLOBEX = UUID(int=1), UUID(int=2)
QUICK = RecordBounds(gather_s=0.0, retry_s=(0.0,), max_tries=3)


class SteppedClock:
    """Tell a time that only the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s


class Drops(Counter[Dropped]):
    """Count what was dropped, by why."""

    def note(self, why: Dropped, number: int) -> None:
        self[why] += number


def ended(number: int = 1, *, tenant_id: UUID | None = ACME, **more: object) -> Timeline:
    """Make the timeline of a request that is over."""
    given = {"status": 200, "is_sampled": True, "organisation_id": UUID(int=7)} | more
    return Timeline(  # type: ignore[arg-type]
        f"{number:032x}", BEGAN_S, 10**18, tenant_id=tenant_id, ended_s=BEGAN_S + 1, **given
    )


async def test_what_is_sampled_is_recorded() -> None:
    """A request that was sampled has a record; one that was not, or was nobody's, has none."""
    store = FakeRecords()
    async with RequestRecorder(store, bounds=QUICK).running():
        pass
    recorder = RequestRecorder(store, bounds=QUICK)
    for timeline in (
        ended(1, facts=(facts(),)),
        ended(2, is_sampled=False),
        ended(3, tenant_id=None),
    ):
        recorder.tell(timeline)
    await recorder.write()
    [record] = store.records
    assert (record.request_id, record.tenant_id) == (UUID(int=1), ACME)
    assert record.cause is Cause.COMPUTE
    assert record.at.timestamp() == 10**9
    assert record.details["generations"][0]["queued_s"] == 0.1


async def test_records_are_written_behind_and_the_last_on_leaving() -> None:
    """What is told is written by itself, in batches; what waits at the end is written then."""
    store = FakeRecords()
    recorder = RequestRecorder(store, bounds=QUICK)
    async with recorder.running():
        for number in range(3):
            recorder.tell(ended(number))
        await _until(lambda: len(store.records) == 3)
        recorder.tell(ended(4))
    assert len(store.records) == 4
    assert recorder.num_waiting == 0


async def test_a_minute_has_so_many_of_a_tenant() -> None:
    """One tenant has a tenth, and failures half of that; a minute later there is room again."""
    drops, clock = Drops(), SteppedClock()
    bounds = RecordBounds(per_minute=100)
    recorder = RequestRecorder(FakeRecords(), bounds=bounds, on_dropped=drops.note, clock=clock)
    failed = [ended(number, status=429) for number in range(50)]
    for timeline in failed:
        recorder.tell(timeline)
    assert recorder.num_waiting == sum(timeline.is_kept for timeline in failed) == 5
    for number in range(50):
        recorder.tell(ended(number))
    assert recorder.num_waiting == 10
    assert drops == {Dropped.RATE: 90}
    recorder.tell(ended(1, tenant_id=GLOBEX))
    assert recorder.num_waiting == 11
    clock.now_s = 60.0
    recorder.tell(ended(1))
    assert recorder.num_waiting == 12


async def test_none_a_minute_are_none() -> None:
    """Who wants no records has none, and none is counted as dropped."""
    drops = Drops()
    bounds = RecordBounds(per_minute=0)
    recorder = RequestRecorder(FakeRecords(), bounds=bounds, on_dropped=drops.note)
    recorder.tell(ended())
    assert (recorder.num_waiting, drops) == (0, {})


async def test_all_tenants_together_are_bounded() -> None:
    """However many tenants there are, a minute has so many records and no more."""
    drops = Drops()
    recorder = RequestRecorder(
        FakeRecords(),
        bounds=RecordBounds(per_minute=30),
        on_dropped=drops.note,
        clock=SteppedClock(),
    )
    for number in range(100):
        recorder.tell(ended(number, tenant_id=UUID(int=number)))
    assert recorder.num_waiting == 30
    assert drops == {Dropped.RATE: 70}


async def test_what_waits_is_bounded_in_bytes() -> None:
    """A tenant fills a quarter of the room and no more; the rest is for others."""
    drops, bounds = Drops(), RecordBounds(per_minute=10**6, waiting_bytes=40_000)
    recorder = RequestRecorder(
        FakeRecords(), bounds=bounds, on_dropped=drops.note, clock=SteppedClock()
    )
    for number in range(100):
        recorder.tell(ended(number))
    num_waiting = recorder.num_waiting
    assert 1 < num_waiting < 100
    for tenant in range(2, 12):
        for number in range(100):
            recorder.tell(ended(number, tenant_id=UUID(int=tenant)))
    assert 4 * num_waiting - 4 <= recorder.num_waiting <= 4 * num_waiting + 4
    assert drops == {Dropped.ROOM: 1100 - recorder.num_waiting}
    await recorder.write()
    recorder.tell(ended())
    assert recorder.num_waiting == 1


async def test_one_record_is_bounded() -> None:
    """What a request can make many of is cut short, and said to be."""
    store = FakeRecords()
    recorder = RequestRecorder(store, bounds=QUICK)
    phases = [Phase("sluice.read", BEGAN_S, BEGAN_S + 1, {"x": "y" * 10_000})] * 1000
    remarks = [Remark("sluice.quota.extended", BEGAN_S)] * 1000
    recorder.tell(ended(phases=phases, remarks=remarks, facts=(facts(),) * 1000, model="m" * 9999))
    await recorder.write()
    [record] = store.records
    assert len(record.details["phases"]) == MAX_MOMENTS
    assert record.details["num_left_out"] == 2 * (1000 - MAX_MOMENTS) + 1000 - 8
    assert len(repr(record)) < 2 * MAX_RECORD_BYTES


async def test_a_store_that_is_away_holds_up_nobody() -> None:
    """Records wait and are tried again; after so many tries they are let go of, and counted."""
    drops, store = Drops(), FakeRecords()
    recorder = RequestRecorder(store, bounds=QUICK, on_dropped=drops.note)
    store.num_away = 2
    async with recorder.running():
        recorder.tell(ended(1))
        await _until(lambda: len(store.records) == 1)
    assert drops == {}
    store.num_away = 3
    async with recorder.running():
        recorder.tell(ended(2))
        await _until(lambda: drops[Dropped.STORE] == 1)
        recorder.tell(ended(3))
        await _until(lambda: len(store.records) == 2)
    assert store.records[1].request_id == UUID(int=3)


async def test_leaving_does_not_wait_for_a_store_that_is_away() -> None:
    """A process that ends writes once more at most."""

    class Away(FakeRecords):
        async def insert(self, records: Sequence[RequestRecord]) -> int:
            self.batches.append(len(records))
            raise OSError("away")

    store = Away()
    recorder = RequestRecorder(store, bounds=QUICK)
    recorder.tell(ended(1))
    async with recorder.running():
        pass
    assert store.batches == [1]


async def _until(is_so: object) -> None:
    assert callable(is_so)
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.001)
