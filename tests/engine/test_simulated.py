"""The simulated engine answers good plans and asserts on bad ones."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest

import fakes
from engine.contract import DecodeRows, NewSequence, SamplingParams, SequenceSlice, StepPlan
from engine.simulated import SimulatedEngine, draw_token


def sequence(
    slot: int = 0,
    token_ids: Sequence[int] = (1, 2, 3, 4, 5, 6),
    *,
    seed: int = 0,
    hit: Sequence[int] = (),
) -> NewSequence:
    return NewSequence(
        slot=slot,
        request_id=f"r{slot}",
        token_ids=array("i", token_ids),
        num_prompt_tokens=len(token_ids),
        num_computed=4 * len(hit),
        block_ids=hit,
        params=SamplingParams(max_tokens=50, seed=seed),
    )


def prefill(step_id: int = 0, *, slot: int = 0, blocks: Sequence[int] = (0, 1)) -> StepPlan:
    chunk = SequenceSlice(slot, 0, 6, blocks, sample=True)
    return StepPlan(step_id, slices=[chunk], admitted=[sequence(slot)])


def decode(step_id: int, position: int, *, slot: int = 0, block: int = -1) -> StepPlan:
    rows = DecodeRows()
    rows.append(slot, position, block)
    return StepPlan(step_id, decodes=rows)


def run(engine: SimulatedEngine, plan: StepPlan) -> list[int]:
    return list(engine.collect(engine.launch(plan)).token_ids)


def test_tokens_depend_on_seed_and_position_alone() -> None:
    """Chunked or not, a sequence draws the same tokens; other seeds draw others."""
    whole = fakes.make_engine()
    tokens = run(whole, prefill())
    tokens += run(whole, decode(1, 6))
    chunked = fakes.make_engine()
    first = SequenceSlice(3, 0, 5, [7, 8], sample=False)
    assert run(chunked, StepPlan(0, slices=[first], admitted=[sequence(3)])) == []
    assert run(chunked, StepPlan(1, slices=[SequenceSlice(3, 5, 1, (), True)])) == tokens[:1]
    assert run(chunked, decode(2, 6, slot=3)) == tokens[1:]
    assert tokens == [draw_token(0, position, range(50)) for position in (6, 7)]
    assert [draw_token(1, p, range(50)) for p in range(20)] != [
        draw_token(0, p, range(50)) for p in range(20)
    ]


def test_draws_cover_the_alphabet() -> None:
    """Every token of the alphabet is drawn, about equally often."""
    drawn = [draw_token(9, position, b"abcd") for position in range(4000)]
    counts = [drawn.count(letter) for letter in b"abcd"]
    assert sum(counts) == 4000
    assert min(counts) > 900


def test_steps_take_their_price() -> None:
    """A step reports its price, and sleeps for it when it is given a sleep."""
    slept: list[float] = []
    engine = SimulatedEngine(
        fakes.UNIT_COST,
        vocab_size=50,
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        num_blocks=8,
        block_size=4,
        alphabet=[42],
        sleep=slept.append,
    )
    result = engine.collect(engine.launch(prefill()))
    assert (list(result.slots), list(result.token_ids)) == ([0], [42])
    assert (result.step_s, slept) == (1.0, [1.0])


def test_two_steps_in_flight_where_the_depth_is_two() -> None:
    """A second step may be launched before the first is collected, a third may not."""
    engine = fakes.make_engine(depth=2)
    handles = [engine.launch(prefill()), engine.launch(decode(1, 6))]
    with pytest.raises(AssertionError, match="too many steps"):
        engine.launch(decode(2, 7))
    assert [engine.collect(handle).step_id for handle in handles] == [0, 1]


def test_reset_forgets_slots_and_content() -> None:
    """After a reset a slot is free again and nothing is there to be hit."""
    engine = fakes.make_engine()
    run(engine, prefill())
    engine.reset()
    run(engine, prefill(1))
    engine.reset()
    hit = sequence(hit=[0])
    with pytest.raises(AssertionError, match="does not hold the prefix"):
        engine.launch(StepPlan(2, slices=[SequenceSlice(0, 4, 2, [1], True)], admitted=[hit]))


def test_prefix_hit_of_equal_tokens_is_good() -> None:
    """Two live sequences may share a block that holds what both begin with."""
    engine = fakes.make_engine()
    run(engine, prefill())
    other = sequence(1, (1, 2, 3, 4, 9), hit=[0])
    run(engine, StepPlan(1, slices=[SequenceSlice(1, 4, 1, [2], True)], admitted=[other]))
    released = StepPlan(2, slices=[SequenceSlice(1, 4, 1, [3], True)], released=[0, 1])
    run(engine, replace(released, admitted=[other]))


def bad_plans() -> dict[str, StepPlan]:
    rows = DecodeRows()
    rows.append(0, 6)
    late = sequence(1)
    return {
        "is taken": prefill(1, blocks=(5, 6)),
        "no such slot": StepPlan(
            1, slices=[SequenceSlice(9, 0, 6, [5, 6], True)], admitted=[sequence(9)]
        ),
        "not in use": StepPlan(1, decodes=rows, released=[2]),
        "decodes at 7": decode(1, 7),
        "used by another": prefill(1, slot=1, blocks=(1, 5)),
        "no block 32": prefill(1, slot=1, blocks=(5, 32)),
        "past the block table": prefill(1, slot=1, blocks=(5,)),
        "starts where the last one ended": StepPlan(
            1, slices=[SequenceSlice(1, 1, 5, [5, 6], True)], admitted=[late]
        ),
        "and it, samples": StepPlan(
            1, slices=[SequenceSlice(1, 0, 5, [5, 6], True)], admitted=[late]
        ),
        "past the newest": StepPlan(
            1, slices=[SequenceSlice(1, 0, 7, [5, 6], True)], admitted=[late]
        ),
        "does not hold the prefix": StepPlan(
            1,
            slices=[SequenceSlice(1, 4, 1, [5], True)],
            admitted=[sequence(1, (1, 2, 3, 9, 5), hit=[0])],
        ),
        "nothing is left": StepPlan(
            1,
            slices=[SequenceSlice(1, 4, 1, [5], True)],
            admitted=[sequence(1, (1, 2, 3, 4), hit=[0])],
        ),
        "over the token budget": StepPlan(
            1,
            slices=[SequenceSlice(1, 0, 17, range(5, 10), True)],
            admitted=[sequence(1, range(17))],
        ),
        "steps go forward": decode(0, 6),
        "empty plan": StepPlan(1),
    }


@pytest.mark.parametrize("complaint", bad_plans())
def test_bad_plan_is_refused(complaint: str) -> None:
    """A plan that breaks a rule of the contract meets an assertion that names the rule."""
    engine = fakes.make_engine()
    run(engine, prefill())
    with pytest.raises(AssertionError, match=complaint):
        engine.launch(bad_plans()[complaint])


def test_slot_computes_once_a_step() -> None:
    """A slot in the decodes and in the slices of one plan is refused."""
    engine = fakes.make_engine()
    run(engine, prefill())
    both = replace(decode(1, 6), slices=[SequenceSlice(0, 7, 1, (), True)])
    with pytest.raises(AssertionError, match="computes twice"):
        engine.launch(both)


def test_closed_engine_runs_nothing() -> None:
    """A launch after close asserts."""
    engine = fakes.make_engine()
    engine.close()
    with pytest.raises(AssertionError, match="closed"):
        engine.launch(prefill())


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("alphabet", [[42], [42, 43]])
def test_sequence_ends_where_its_length_says(checks: bool, alphabet: list[int]) -> None:
    """The token at a request's output length is an end token, drawn in a slice or by a decode."""
    for length in (1, 3):
        engine = SimulatedEngine(
            fakes.UNIT_COST,
            vocab_size=50,
            max_model_len=64,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            num_blocks=32,
            block_size=4,
            eos_token_ids=frozenset([7]),
            alphabet=alphabet,
            output_lengths={"r0": length},
            checks=checks,
        )
        tokens = run(engine, prefill())
        tokens += run(engine, decode(1, 6))
        tokens += run(engine, decode(2, 7))
        assert [n for n, token in enumerate(tokens, 1) if token == 7] == [length]


def test_unchecked_engine_answers_alike() -> None:
    """Without its referee an engine draws the same tokens, and lets a bad plan pass."""
    checked, unchecked = (
        SimulatedEngine(
            fakes.UNIT_COST,
            vocab_size=50,
            max_model_len=64,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            num_blocks=32,
            block_size=4,
            checks=checks,
        )
        for checks in (True, False)
    )
    plans = [prefill(), decode(1, 6), decode(2, 7)]
    assert [run(checked, plan) for plan in plans] == [run(unchecked, plan) for plan in plans]
    bad = decode(3, 20)
    assert len(run(unchecked, bad)) == 1
    with pytest.raises(AssertionError, match="decodes at 20"):
        checked.launch(bad)
