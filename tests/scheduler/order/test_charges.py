"""What requests cost their tenants: each piece of work once, and nothing that was not had."""

from __future__ import annotations

import numpy as np
import pytest

import fakes
from engine.contract import SequenceSlice
from engine.step_cost import StepFeatures, load_profile
from scheduler.config import FairnessConfig, Prices
from scheduler.learn import MachineTime, StepModel
from scheduler.order import Charges, FairTree, Tokens
from scheduler.running import RunningSet
from waiting import make_sequence

_INFO = fakes.make_engine(max_num_batched_tokens=512, num_blocks=1_000).info


def test_a_chunk_that_is_computed_again_costs_nothing() -> None:
    """A small chunk is paid for the first time, and not where a preemption made it be repeated."""
    tree, charges = FairTree(FairnessConfig()), Charges(RunningSet(2))
    charges.go_by(tree.config, tree, MachineTime(_INFO, StepModel(load_profile("cpu-demo"))))
    sequence = make_sequence(2_000)
    tree.enrol(sequence, 0.0)
    charges.admit(sequence, 0.0)
    chunk = SequenceSlice(0, 1_024, 16, (), False)
    before = tree.served
    charges.take_chunks([(sequence, chunk)], 0.0)
    once = tree.served
    assert once > before
    sequence.num_computed = 1_040
    sequence.lose_kv()
    # Of which most is still in the cache.
    sequence.num_computed = 1_024
    charges.admit(sequence, 1.0)
    charges.take_chunks([(sequence, chunk)], 1.0)
    assert tree.served == once
    assert charges.num_wasted_tokens == 16


@pytest.mark.parametrize("num_drawn", [0, 3, 9])
def test_what_was_paid_before_and_not_drawn_is_given_back(num_drawn: int) -> None:
    """With the output precharged a request has paid at its end for what it has drawn."""
    config, running = FairnessConfig(precharge_output=True), RunningSet(2)
    tree, charges = FairTree(config), Charges(running)
    charges.go_by(config, tree, Tokens(Prices(input=1.0, output=2.0)))
    sequence = make_sequence(10, max_tokens=20)
    sequence.expected_output = 5.0
    tree.enrol(sequence, 0.0)
    charges.admit(sequence, 0.0)
    sequence.num_computed = 10
    charges.begin_step(StepFeatures(num_decode_tokens=1))
    for _ in range(num_drawn):
        charges.take_outputs([sequence], 1.0)
        sequence.token_ids.append(0)
    charges.end(sequence, 2.0)
    assert tree.served == pytest.approx(10.0 + 2.0 * num_drawn)


@pytest.mark.parametrize("policy", ["vtc", "dlpm"])
def test_who_holds_memory_pays_for_it_in_every_step(policy: str) -> None:
    """A row that sits out pays for what it holds of its own, and one that drew for that besides."""
    tree = FairTree(FairnessConfig(policy=policy))
    running = RunningSet(3, compiled=False)
    charges = Charges(running)
    charges.go_by(tree.config, tree, MachineTime(_INFO, StepModel(load_profile("cpu-demo"))))
    rows = {}
    for tenant, num_own in (("drew", 10), ("sat out", 100)):
        row = rows[tenant] = make_sequence(100, tenant=tenant)
        tree.enrol(row, 0.0)
        running.admit(row)
        running.kv_growth.admit(row.slot, num_own, 4)
        row.num_computed, row.num_tokens = 100, 101
        running.start_decoding(row)
    charges.begin_step(StepFeatures(num_decode_tokens=1, decode_context_tokens=101))
    for _ in range(2):
        charges.take_drawn(np.array([rows["drew"].slot]), 1.0)
    drew, sat_out = (tree.key_of(row).above.served for row in rows.values())
    prices = charges._prices
    assert prices.held_token > 0.0
    assert sat_out == pytest.approx(2 * 100 * prices.held_token)
    drawn = prices.row + 101 * prices.context_token
    assert drew == pytest.approx(2 * (drawn + 10 * prices.held_token))
