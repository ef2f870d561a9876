"""Who goes when blocks run out, and how they come back."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

import fakes
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from fakes import Driver
from scheduler.config import PRESETS, PreemptionConfig
from scheduler.core import Scheduler
from scheduler.facts import PreemptionCause
from scheduler.request import Band, Slo
from scheduler.running.running_set import RunningSet
from scheduler.sequence import Sequence
from scheduler.step.preemption import Preemption

MAX_PREEMPTIONS = PreemptionConfig().max_preemptions


def preemption(pool: BlockPool, running: RunningSet) -> Preemption:
    """Choose among tenants that are all at their share."""
    return Preemption(PreemptionConfig(), pool, running, lambda sequence: 0.0)


def running_rows(pool: BlockPool, *rows: tuple[Band, int]) -> tuple[RunningSet, list[Sequence]]:
    """Let sequences of the given bands and past preemptions decode with full blocks."""
    running = RunningSet(8)
    sequences = []
    for ordinal, (band, num_preemptions) in enumerate(rows):
        request = fakes.make_request(f"r{ordinal}", prompt=range(4), band=band)
        table = BlockTable(pool, bytes([ordinal]))
        assert table.allocate(4) is not None
        sequence = Sequence(
            request, table, ordinal=ordinal, max_len=64, info=fakes.make_engine().info
        )
        sequence.num_preemptions = num_preemptions
        running.admit(sequence)
        sequence.num_computed = 4
        sequence.num_tokens = 5
        sequence.append_tokens(array("i", [4]).tobytes())
        running.start_decoding(sequence)
        sequences.append(sequence)
    return running, sequences


@pytest.mark.parametrize(
    ("rows", "victim"),
    [
        ([(Band.DEFAULT, 0), (Band.DEFAULT, 0)], 1),
        ([(Band.FLEX, 0), (Band.DEFAULT, 0)], 0),
        ([(Band.PRIORITY, 0), (Band.DEFAULT, MAX_PREEMPTIONS)], 0),
        ([(Band.DEFAULT, 0), (Band.BATCH, MAX_PREEMPTIONS)], 1),
        ([(Band.DEFAULT, MAX_PREEMPTIONS), (Band.DEFAULT, MAX_PREEMPTIONS)], 1),
        ([(Band.PRIORITY, 0), (Band.BATCH, 1), (Band.BATCH, 0), (Band.DEFAULT, 0)], 2),
    ],
)
def test_victim_is_youngest_of_lowest_band_and_pinned_last(
    rows: list[tuple[Band, int]], victim: int
) -> None:
    """The lowest band pays first, in it the youngest; rows preempted twice pay last,
    but for those of the batch band."""
    pool = BlockPool(16, 4)
    running, sequences = running_rows(pool, *rows)
    assert preemption(pool, running).choose_victim() is sequences[victim]


@pytest.mark.parametrize("slo", [Slo(max_gap_s=0.1), Slo(tpot_s=0.1)])
def test_what_was_promised_a_pace_goes_after_what_was_not(slo: Slo) -> None:
    """Of a tenant's rows the oldest goes before a younger one whose tokens have times."""
    pool = BlockPool(16, 4)
    running, sequences = running_rows(pool, *[(Band.DEFAULT, 0)] * 3)
    for sequence in sequences[1:]:
        sequence.request = replace(sequence.request, slo=slo)
    chooser = preemption(pool, running)
    assert chooser.choose_victim() is sequences[0]
    running.preempt(sequences[0], PreemptionCause.BLOCKS)
    assert chooser.choose_victim() is sequences[2]


def test_a_promise_moves_no_share() -> None:
    """The tenant that is further ahead of its share gives back a promised row before others' go."""
    pool = BlockPool(16, 4)
    running, sequences = running_rows(pool, (Band.DEFAULT, 0), (Band.DEFAULT, 0))
    sequences[0].request = replace(sequences[0].request, slo=Slo(max_gap_s=0.1))
    ahead = {sequences[0]: (1.0, 0.0), sequences[1]: (0.0, 0.0)}
    chooser = Preemption(PreemptionConfig(), pool, running, ahead.__getitem__)
    assert chooser.choose_victim() is sequences[0]


def test_no_more_rows_go_than_must() -> None:
    """Victims go until the rest have the blocks they need, and only then."""
    pool = BlockPool(4, 4)
    running, sequences = running_rows(pool, *[(Band.DEFAULT, 0)] * 4)
    assert preemption(pool, running).make_room() == [sequences[3], sequences[2]]
    assert (len(running), pool.num_free) == (2, 2)


def test_room_for_all_means_no_victim() -> None:
    """With a free block for each row that needs one nobody goes."""
    pool = BlockPool(4, 4)
    running, _ = running_rows(pool, (Band.DEFAULT, 0), (Band.DEFAULT, 0))
    assert preemption(pool, running).make_room() == []


@pytest.mark.parametrize("depth", [1, 2])
def test_victims_resume_where_they_were(depth: int) -> None:
    """With blocks for hardly more than one, all are preempted over again and none loses a token."""
    engine = fakes.make_engine(num_blocks=7, depth=depth)
    driver = Driver(engine)
    requests = [
        fakes.make_request(
            f"r{i}", prompt=range(i, i + 5), max_tokens=18, seed=i, arrival_s=float(i)
        )
        for i in range(4)
    ]
    for request in requests:
        driver.offer(request)
    driver.run()
    assert driver.scheduler.snapshot().num_preemptions >= 2
    for request in requests:
        expected, _ = fakes.expected_tokens(request, engine.info)
        assert driver.tokens[request.request_id] == expected


def test_victim_finds_its_own_blocks_again() -> None:
    """A preempted sequence resumes from its published blocks, yet they are no cached prompt."""
    driver = Driver(fakes.make_engine(num_blocks=9))
    for i in range(2):
        driver.offer(
            fakes.make_request(f"r{i}", prompt=range(12), max_tokens=8, salt=bytes([i]), seed=i)
        )
    driver.run()
    returned = [s for plan in driver.plans for s in plan.admitted if len(s.token_ids) > 12]
    assert returned
    assert all(s.num_computed >= 8 for s in returned)
    assert {last.num_cached_tokens for last in driver.last.values()} == {0}


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    """What a victim gave is for the rows that decode; who waits is looked at a step later."""
    driver = Driver(fakes.make_engine(num_blocks=6, max_num_seqs=2))
    driver.offer(fakes.make_request("old", prompt=range(4), max_tokens=9, salt=b"1"))
    driver.offer(fakes.make_request("young", prompt=range(12), max_tokens=9, salt=b"2"))
    driver.turn()
    driver.offer(fakes.make_request("first", prompt=range(2), arrival_s=-1.0, salt=b"3"))
    driver.run()
    [preempting] = [i for i, plan in enumerate(driver.plans) if plan.preempted]
    assert driver.plans[preempting].preempted == ["young"]
    assert not driver.plans[preempting].admitted
    assert [s.request_id for s in driver.plans[preempting + 1].admitted] == ["first"]


def test_nobody_goes_where_it_cannot_help() -> None:
    """Rows are sent back only if that frees all the slots and blocks that are asked for."""
    pool = BlockPool(4, 4)
    running, sequences = running_rows(pool, (Band.FLEX, 0), (Band.FLEX, 0), (Band.DEFAULT, 0))
    running.num_steps = PreemptionConfig().min_run_steps
    chooser = preemption(pool, running)
    assert chooser.displace(Band.DEFAULT, 4, 1) == [], "the default row keeps a block"
    assert chooser.displace(Band.DEFAULT, 1, 8) == [], "and its slot"
    assert len(running) == 3
    assert chooser.displace(Band.DEFAULT, 2, 1) == [sequences[1]]


def test_all_go_where_that_is_just_enough() -> None:
    """The last slot and the last block of lower bands are had as well."""
    pool = BlockPool(4, 4)
    running, sequences = running_rows(pool, (Band.FLEX, 0), (Band.FLEX, 0), (Band.DEFAULT, 0))
    running.num_steps = PreemptionConfig().min_run_steps
    num_slots = running.num_free_slots + 2
    victims = preemption(pool, running).displace(Band.DEFAULT, 3, num_slots)
    assert victims == [sequences[1], sequences[0]]


def test_who_has_just_begun_is_not_displaced() -> None:
    """A row has a few steps before a higher band may have its place."""
    pool = BlockPool(4, 4)
    running, sequences = running_rows(pool, (Band.FLEX, 0))
    chooser = preemption(pool, running)
    running.num_steps = PreemptionConfig().min_run_steps - 1
    assert chooser.displace(Band.DEFAULT, 4, 1) == []
    running.num_steps += 1
    assert chooser.displace(Band.DEFAULT, 4, 1) == sequences


def test_what_runs_on_its_bands_share_is_not_displaced() -> None:
    """A row that was let in while higher bands waited stays, and so its share is kept."""
    pool = BlockPool(4, 4)
    running, sequences = running_rows(pool, (Band.FLEX, 0), (Band.FLEX, 0))
    running.num_steps = PreemptionConfig().min_run_steps
    sequences[0].is_guaranteed = True
    chooser = preemption(pool, running)
    assert chooser.displace(Band.DEFAULT, 4, 1) == []
    assert chooser.displace(Band.DEFAULT, 3, 1) == [sequences[1]]


def test_what_runs_on_its_bands_guaranteed_share_stays() -> None:
    """Who is let in before a higher band, for what its own is owed, is not sent back for that."""
    driver = Driver(fakes.make_engine(max_num_seqs=4))
    driver.scheduler = Scheduler(driver.engine.info, PRESETS["mixed"])
    for name, band in (("low", Band.FLEX), ("high", Band.DEFAULT)):
        driver.offer(fakes.make_request(name, tenant_id=name, band=band, ignore_eos=True))
    waiting = driver.scheduler._lifecycle.waiting
    owed = waiting.bands["FLEX"]
    owed.counter = 1e6
    owed.above.order.update(owed, driver.now)
    driver.turn()
    assert [new.request_id for new in driver.plans[-1].admitted] == ["low", "high"]
    rows = {row.request_id: row for row in driver.scheduler._running}
    assert (rows["low"].is_guaranteed, rows["high"].is_guaranteed) == (True, False)
