"""Masks of constraints in the sampler, by the compiled operators and by their twin."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.contract import NewSequence, SamplingParams
from engine.sampling.constraints import ConstraintTable, StepMasks, TokenMasks, hide
from engine.sampling.logit_bias import BiasEntries
from engine.sampling.mask_maker import MaskMaker
from engine.sampling.sampler import LogitEdits, SamplingRows, sample
from fake_constraint import Spelled
from tests.engine.sampling.test_compiled import rows_of

END = 1


def admitted(
    constraint: Spelled, *, slot: int = 0, drawn: Sequence[int] = (), vocab_size: int = 70
) -> ConstraintTable:
    """A table with one sequence of two prompt tokens and what it has drawn."""
    table = ConstraintTable(vocab_size=vocab_size, num_slots=9)
    params = SamplingParams(max_tokens=9, constraint=constraint)
    tokens = array("i", [5, 6, *drawn])
    table.admit(NewSequence(slot, "r", tokens, 2, 0, (), params))
    return table


def step_of(table: ConstraintTable, *slots: int) -> StepMasks:
    step = table.step(np.array(slots, np.int32))
    assert step is not None
    return step


def allowed(masks: TokenMasks, at: int = 0) -> list[int]:
    bits = np.unpackbits(masks.words[at].view(np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits)]


@pytest.mark.parametrize("size", [1, 31, 32, 33, 70, 300])
def test_the_compiled_mask_hides_what_the_twin_hides(native_library: bool, size: int) -> None:
    """Rows of any size lose what their own masks forbid, to the bit, and other rows nothing."""
    if not native_library:
        return
    generator = np.random.default_rng(size)
    words = generator.integers(-(2**31), 2**31, (3, -(-size // 32))).astype(np.int32)
    words[1] = -1
    masks = TokenMasks(np.array([4, 0, 2], np.int64), words, {})
    logits = torch.randn(5, size, generator=torch.Generator().manual_seed(1))
    ours, twins = logits.clone(), logits.clone()
    hide(ours, masks, native=True)
    hide(twins, masks)
    assert torch.equal(ours, twins)
    assert torch.equal(ours[[0, 1, 3]], logits[[0, 1, 3]])


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 5.0])
def test_nothing_that_is_forbidden_is_drawn(
    native_library: bool, native: bool, temperature: float
) -> None:
    """A row draws what its mask leaves, at any temperature, and its neighbour what it would."""
    if native and not native_library:
        return
    logits = torch.randn(2, 70, generator=torch.Generator().manual_seed(2))
    rows = rows_of(2, temperature)
    (_, alone), _ = sample(logits.clone(), rows, native=native)
    table = admitted(Spelled([[33], [64]], end=END), slot=7)
    edits = LogitEdits(None, None, step_of(table, 7, 0).take())
    token_ids, failed = sample(logits, rows, edits, native=native)
    assert token_ids.tolist() == [33, alone]
    assert not failed.any()


@pytest.mark.parametrize("size", [31, 70, 300])
@pytest.mark.parametrize("is_biased", [False, True])
def test_compiled_draws_under_masks_are_the_twins(
    native_library: bool, size: int, is_biased: bool
) -> None:
    """In one call or, beside other edits, in several: tokens, and rows that are bad or emptied."""
    if not native_library:
        return
    generator = np.random.default_rng(size)
    num_rows = 40
    words = generator.integers(-(2**31), 2**31, (30, -(-size // 32))).astype(np.int32)
    words[3] = 0
    masked = generator.permutation(num_rows)[:30]
    masks = TokenMasks(masked.astype(np.int64), words, {})
    rows = SamplingRows(
        temperature=generator.choice([0, 0.7, 3], num_rows).astype(np.float32),
        top_k=generator.choice([0, 5], num_rows),
        top_p=generator.choice([0.6, 1], num_rows).astype(np.float32),
        min_p=np.zeros(num_rows, np.float32),
        seeds=np.arange(num_rows, dtype=np.uint64),
        positions=np.arange(num_rows),
    )
    value = np.ones(1, np.float32)
    bias = BiasEntries(rows=masked[:1].astype(np.int64), token_ids=np.array([7]), values=value)
    edits = LogitEdits(bias if is_biased else None, None, masks)
    logits = torch.randn(num_rows, size, generator=torch.Generator().manual_seed(3)) * 3
    logits[masked[5], 2], logits[np.setdiff1d(np.arange(num_rows), masked)[0], 4] = -np.inf, np.nan
    twins, twins_failed = sample(logits.clone(), rows, edits)
    ours, failed = sample(logits.clone(), rows, edits, native=True)
    assert failed.tolist() == twins_failed.tolist()
    assert failed.sum() == 3
    assert ours[~failed].tolist() == twins[~failed].tolist()


@pytest.mark.parametrize("native", [False, True])
def test_a_row_that_is_left_nothing_fails_alone(native_library: bool, native: bool) -> None:
    """A mask that a bias of minus infinity empties is that row's own fault, and is told as such."""
    if native and not native_library:
        return
    bias = BiasEntries(
        rows=np.array([0, 1], np.int64),
        token_ids=np.array([END, END], np.int64),
        values=np.full(2, -np.inf, np.float32),
    )
    table = admitted(Spelled([], end=END))
    step = step_of(table, 0, 3)
    _, failed = sample(
        torch.zeros(2, 70), rows_of(2, 1.0), LogitEdits(bias, None, step.take()), native=native
    )
    assert failed.tolist() == [True, False]
    assert list(step.unmet(np.array([0, 3], np.int32), failed, bias)) == [0]


def test_a_bad_logit_is_no_fault_of_a_constraint() -> None:
    """A row whose logits are no numbers is the engine's fault although it has a constraint."""
    step = step_of(admitted(Spelled([[33]], end=END)), 0)
    _, failed = sample(
        torch.full((1, 70), torch.nan), rows_of(1, 1.0), LogitEdits(None, None, step.take())
    )
    assert failed.tolist() == [True]
    assert step.unmet(np.array([0], np.int32), failed, None) == {}


def test_a_sequence_goes_on_with_a_copy_of_its_own() -> None:
    """What a sequence draws moves its own constraint, not the request's; slots know no other's."""
    constraint = Spelled([[33], [64]], end=END)
    table = admitted(constraint, slot=2)
    step = step_of(table, 0, 2)
    assert allowed(step.take()) == [33]
    step.accept(np.array([9, 33], np.int32), np.zeros(2, np.bool_))
    assert allowed(step_of(table, 2).take()) == [64]
    assert allowed(step_of(admitted(constraint), 0).take()) == [33]
    table.release([2])
    assert table.step(np.array([2], np.int32)) is None


def test_a_sequence_that_comes_back_knows_what_it_had_drawn() -> None:
    """After a preemption the tokens behind the prompt are learnt again, so the next is the same."""
    table = admitted(Spelled([[33], [64]], end=END), drawn=(33, 64))
    assert allowed(step_of(table, 0).take()) == [END]


class Counting(Spelled):
    """Count what sequences' constraints are told."""

    num_told = 0

    def accept(self, token_ids: Sequence[int]) -> None:
        Counting.num_told += len(token_ids)
        super().accept(token_ids)

    def copy(self) -> Counting:
        return Counting(self.spelled, end=self.end, place=self.place)


def test_a_preempted_sequence_learns_only_what_it_has_not_been_told() -> None:
    """Its constraint is kept for as long as anybody has the request, and for that request alone."""
    table = ConstraintTable(vocab_size=70, num_slots=9)
    params = SamplingParams(max_tokens=9, constraint=Counting([[33], [34], [35], [64]], end=END))

    def come(slot: int, *drawn: int, request_id: str = "r") -> list[int]:
        tokens = array("i", [5, 6, *drawn])
        table.admit(NewSequence(slot, request_id, tokens, 2, 0, (), params))
        return allowed(step_of(table, slot).take())

    assert come(4, 33, 34) == [35]
    step_of(table, 4).accept(np.array([35], np.int32), np.zeros(1, np.bool_))
    table.release([4], ["r"])
    Counting.num_told = 0
    assert come(2, 33, 34, 35) == [64]
    assert Counting.num_told == 1
    table.release([2])
    assert come(2, 33) == [34]
    assert Counting.num_told == 2
    table.release([2], ["r"])
    assert come(2, 33, 34, request_id="other") == [35]
    assert Counting.num_told == 4
    table.release([2], ["other"])
    table.clear()
    assert come(2, 33, 34, 35) == [64]
    assert Counting.num_told == 7


def test_what_is_kept_of_the_preempted_is_bounded() -> None:
    """No more are kept than there are slots, and nothing of a request that is no more."""
    table = ConstraintTable(vocab_size=70, num_slots=2)
    living = []
    for number in range(4):
        params = SamplingParams(max_tokens=9, constraint=Counting([[33]], end=END))
        table.admit(NewSequence(0, f"r{number}", array("i", [5, 6]), 2, 0, (), params))
        table.release([0], [f"r{number}"])
        living.append(params)
    assert list(table._kept) == ["r2", "r3"]
    del living[2:], params
    assert not table._kept


class Broken(Spelled):
    """A constraint with a fault that it does not foresee."""

    def fill_mask(self, words: NDArray[np.int32], address: int) -> None:
        raise ZeroDivisionError

    def copy(self) -> Broken:
        return Broken(self.spelled, end=self.end)


def test_a_constraint_that_breaks_ends_its_own_row() -> None:
    """One that raises, or that was told what it did not allow, is named, and harms no other row."""
    table = admitted(Spelled([[33]], end=END), slot=0, drawn=(40,))
    broken = SamplingParams(max_tokens=9, constraint=Broken([], end=END))
    good = SamplingParams(max_tokens=9, constraint=Spelled([[64]], end=END))
    for slot, params in ((1, broken), (2, good)):
        table.admit(NewSequence(slot, "r", array("i", [5]), 1, 0, (), params))
    step = step_of(table, 0, 1, 2)
    maker = MaskMaker()
    maker.begin(step)
    masks = step.take()
    maker.close()
    assert allowed(masks, 2) == [64]
    reasons = step.unmet(np.arange(3, dtype=np.int32), np.zeros(3, np.bool_), None)
    assert reasons == {
        0: "token 40 is none of [33]",
        1: "the constraint failed: ZeroDivisionError",
    }


class Slow(Spelled):
    """A constraint whose masks take a processor for so long, or wait for so long."""

    def __init__(self, *, computes_s: float = 0.0, waits_s: float = 0.0) -> None:
        super().__init__([[33]], end=END)
        self.computes_s, self.waits_s = computes_s, waits_s

    def fill_mask(self, words: NDArray[np.int32], address: int) -> None:
        time.sleep(self.waits_s)
        ends_s = time.thread_time() + self.computes_s
        while time.thread_time() < ends_s:
            pass
        super().fill_mask(words, address)

    def copy(self) -> Slow:
        return Slow(computes_s=self.computes_s, waits_s=self.waits_s)


def test_a_row_costs_what_it_takes_of_a_processor() -> None:
    """Neither what quick rows before it took, nor for how long it did not have the processor."""
    table = ConstraintTable(vocab_size=70, num_slots=9)
    parts = [Slow(), Slow(), Slow(computes_s=0.02), Slow(waits_s=0.02), Slow(computes_s=0.04)]
    for slot, constraint in enumerate(parts):
        params = SamplingParams(max_tokens=9, constraint=constraint)
        table.admit(NewSequence(slot, "r", array("i", [5]), 1, 0, (), params))
    step = step_of(table, *range(5))
    began_s = time.thread_time()
    step.take()
    whole_s = time.thread_time() - began_s
    costs = step.take().costs
    assert costs is not None
    costs_s = costs.took_s
    assert 0 < costs_s[0] < 0.01 > costs_s[3]
    assert 0.02 <= costs_s[2] < 0.04 <= costs_s[4]
    assert costs_s.sum() <= whole_s + 0.001
