"""Every change in a request's life, and that all who keep a record of it agree."""

from __future__ import annotations

import random

import numpy as np
import pytest

import fakes
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from engine.step_cost import StepFeatures
from scheduler.admission import Admission
from scheduler.config import AdmissionConfig, FairnessConfig, SchedulerConfig
from scheduler.facts import PreemptionCause
from scheduler.learn import Estimates, LengthModel, StepModel
from scheduler.lifecycle import Lifecycle
from scheduler.order import Replicas, Tokens
from scheduler.request import Band, FinishReason
from scheduler.running import RunningSet
from scheduler.sequence import Sequence, Status

INFO = fakes.make_engine().info


class Life:
    """Let requests live without a composer, a core or an engine."""

    def __init__(self) -> None:
        self.pool = BlockPool(INFO.num_blocks, INFO.block_size)
        self.running = RunningSet(INFO.max_num_seqs)
        config, lengths, model = SchedulerConfig(), LengthModel(), StepModel()
        self.cycle = Lifecycle(config.fairness, self.pool, self.running, lengths)
        self._parts = config, lengths, model
        self.go_by()

    def go_by(self) -> None:
        config, lengths, model = self._parts
        self.estimates = Estimates(config, INFO, model, lengths)
        tree = self.cycle.waiting
        admission = Admission(
            AdmissionConfig(), INFO, tree, self.running, model, jitter=random.Random(0)
        )
        unit = Tokens(config.fairness.prices)
        self.cycle.go_by(config.fairness, unit, self.estimates, admission, 0.0)

    def holds(self, sequence: Sequence) -> bool:
        """Hold a request for who is computing its prompt."""
        shared = self.cycle.computes_prompt(sequence, 0)
        return shared is not None and self.cycle.hold(sequence, shared, 0.0)

    def take_in(
        self,
        name: str,
        *,
        tenant_id: str = "acme",
        band: Band = Band.DEFAULT,
        finish_by_s: float | None = None,
        granted_tokens: int | None = None,
    ) -> Sequence:
        """Take in a request of two blocks, the prompt of which all share."""
        request = fakes.make_request(
            name,
            prompt=range(8),
            tenant_id=tenant_id,
            band=band,
            finish_by_s=finish_by_s,
            granted_tokens=granted_tokens,
        )
        sequence = Sequence(
            request,
            BlockTable(self.pool, b"salt"),
            ordinal=len(self.cycle.live()),
            max_len=64,
            info=INFO,
        )
        self.estimates.update(sequence)
        self.cycle.take_in(sequence, 0.0)
        return sequence

    def admit(self, sequence: Sequence) -> None:
        self.cycle.admit(sequence, [], 12.0, 0.0)

    def places(self, sequence: Sequence) -> tuple[bool, bool, bool]:
        """Tell whether a request waits, runs, and is held for another."""
        return sequence in self.cycle.waiting, sequence in [*self.running], sequence.is_held


def test_a_request_is_in_one_place_at_a_time() -> None:
    """It waits, runs, is sent back and runs again, and each record of that agrees."""
    life = Life()
    sequence = life.take_in("r")
    assert life.places(sequence) == (True, False, False)
    life.admit(sequence)
    assert life.places(sequence) == (False, True, False)
    assert (life.cycle.num_queued, life.cycle.num_waiting) == (0, 0)
    life.running.preempt(sequence, PreemptionCause.BLOCKS)
    life.cycle.requeue(sequence, 1.0)
    assert life.places(sequence) == (True, False, False)
    assert (life.cycle.num_queued, life.cycle.num_waiting) == (1, 1)


def test_who_is_held_waits_again_when_the_other_goes() -> None:
    """A request is held for one that computes its prompt, and queued once that is sent back."""
    life = Life()
    leader, follower = life.take_in("leader"), life.take_in("follower")
    life.admit(leader)
    assert life.holds(follower)
    assert life.places(follower) == (False, False, True)
    assert life.cycle.num_waiting == 1
    life.running.preempt(leader, PreemptionCause.BLOCKS)
    life.cycle.requeue(leader, 1.0)
    life.cycle.release_followers(1.0)
    assert life.places(follower) == (True, False, False)


def test_who_is_forced_up_while_held_waits_for_no_lower_band() -> None:
    """A held request of the batch band waits for a slot once it is forced up; others stay held."""
    life = Life()
    leader, first, second = (life.take_in(n, band=Band.BATCH) for n in ("leader", "a", "b"))
    life.admit(leader)
    assert life.holds(first)
    assert life.holds(second)
    life.cycle._promote(first, Band.DUE, 1.0)
    assert life.places(first) == (True, False, False)
    assert life.places(second) == (False, False, True)
    assert not life.holds(first)
    assert not first.course.is_held


@pytest.mark.parametrize("state", ["waiting", "running", "held"])
def test_an_end_frees_what_is_held_wherever_it_finds_the_request(state: str) -> None:
    """After a request's end no record knows it, and its slot and blocks are free."""
    life = Life()
    leader, sequence = life.take_in("leader"), life.take_in("r")
    life.admit(leader)
    if state == "running":
        life.admit(sequence)
    elif state == "held":
        assert life.holds(sequence)
    output = life.cycle.end(sequence, FinishReason.CANCELLED, 1.0)
    assert output.finish_reason is FinishReason.CANCELLED
    assert sequence.status is Status.FINISHED
    assert life.cycle.find("r") is None
    assert life.places(sequence) == (False, False, False)
    life.cycle.end(leader, FinishReason.CANCELLED, 1.0)
    assert life.pool.num_free == life.pool.num_blocks
    assert (life.cycle.num_queued, life.cycle.ended.num_finished) == (0, 2)


def test_a_paused_request_waits_when_it_is_granted_more() -> None:
    """One that may draw nothing would stand in the way, and is queued by its grant."""
    life = Life()
    sequence = life.take_in("r", granted_tokens=1)
    life.admit(sequence)
    sequence.num_computed, sequence.num_tokens = 8, 9
    life.running.start_decoding(sequence)
    sequence.append_tokens((5).to_bytes(4, "little"))
    life.running.preempt(sequence, PreemptionCause.BLOCKS)
    life.cycle.requeue(sequence, 1.0)
    assert life.places(sequence) == (False, False, False)
    life.cycle.grant(sequence, 4, 2.0)
    assert life.places(sequence) == (True, False, False)


def test_batch_work_that_has_ended_is_not_forced_up() -> None:
    """As their window nears its end one of two requests is moved up, and not the one that ended."""
    life = Life()
    other = life.take_in("online")
    kept, ended = (life.take_in(n, band=Band.BATCH, finish_by_s=30.0) for n in ("kept", "ended"))
    life.cycle.end(ended, FinishReason.CANCELLED, 0.0)
    for second in range(30):
        life.cycle.windows.note_step(1.0)
        life.cycle.waiting.charge(other, 10_000.0, float(second))
        life.cycle.promote_due(Replicas(), float(second))
    assert (kept.request.band, ended.request.band) == (Band.DUE, Band.BATCH)


def test_a_row_that_is_moved_up_is_charged_where_it_runs() -> None:
    """What batch work draws after it was forced up counts for the band `due`."""
    life = Life()
    row = life.take_in("r", band=Band.BATCH, finish_by_s=30.0)
    life.admit(row)
    row.num_computed, row.num_tokens = 8, 9
    life.running.start_decoding(row)
    life.cycle._promote(row, Band.DUE, 1.0)
    bands = life.cycle.waiting.bands
    before = bands["BATCH"].served
    life.cycle.charges.begin_step(StepFeatures(num_decode_tokens=1))
    life.cycle.charges.take_drawn(np.array([row.slot]), 1.0)
    assert bands["BATCH"].served == before
    assert bands["DUE"].served > 0.0


def test_what_is_given_back_after_a_move_is_of_the_band_that_is_owed() -> None:
    """Of a prompt moved up the rest counts in `due`, and a cancellation leaves nothing there."""
    life = Life()
    other = life.take_in("other", band=Band.BATCH)
    row = life.take_in("r", band=Band.BATCH, finish_by_s=30.0)
    life.admit(row)
    row.num_computed = 2
    bands = life.cycle.waiting.bands
    before = bands["BATCH"].served
    life.cycle._promote(row, Band.DUE, 1.0)
    assert bands["DUE"].served > 0.0
    assert bands["BATCH"].served == before - bands["DUE"].served
    life.cycle.end(row, FinishReason.CANCELLED, 1.0)
    assert bands["DUE"].served == 0.0
    assert bands["BATCH"].served > 0.0
    life.cycle.end(other, FinishReason.CANCELLED, 1.0)


def test_who_asked_for_nothing_in_a_minute_has_no_share_any_more() -> None:
    """Each step forgets tenants that have been idle for long, and others have what was theirs."""
    life = Life()
    gone, stays = life.take_in("gone", tenant_id="gone"), life.take_in("stays")
    life.cycle.end(gone, FinishReason.CANCELLED, 1.0)
    life.cycle.drop_late(60.0)
    assert life.running.holdings.share(stays) == 0.5
    life.cycle.drop_late(62.0)
    assert life.running.holdings.share(stays) == 1.0


def test_another_order_keeps_who_waits() -> None:
    """Those that waited are handed out, the oldest first, and wait in the new tree once queued."""
    life = Life()
    sequences = [life.take_in(f"r{number}") for number in range(3)]
    moved = life.cycle.reorder(FairnessConfig(policy="fcfs"), 1.0)
    assert moved == sequences
    assert not len(life.cycle.waiting)
    life.go_by()
    for sequence in moved:
        life.cycle.queue(sequence, 1.0)
    assert life.cycle.waiting.peek(1.0) is sequences[0]


def test_lost_steps_queue_everyone_but_those_that_failed() -> None:
    """After the engine forgot its KV, who failed has ended and all others wait with nothing."""
    life = Life()
    failed, other = life.take_in("failed"), life.take_in("other")
    life.admit(failed)
    life.admit(other)
    (output,) = life.cycle.lose_steps([failed, other], [failed], "fault", 1.0)
    assert (output.request_id, output.error) == ("failed", "fault")
    assert life.places(other) == (True, False, False)
    assert (other.num_computed, other.num_tokens) == (0, 8)
    assert life.pool.num_free == life.pool.num_blocks
