"""The unit of service that is time on the machine: what it prices, and that it adds up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fakes
from engine.step_cost import LinearCost, StepCost, StepFeatures, attended_tokens, load_profile
from scheduler.learn import MachineTime, StepModel

CHUNK = 512
INFO = fakes.make_engine(
    max_model_len=8_192, max_num_seqs=64, max_num_batched_tokens=CHUNK, num_blocks=1_000
).info
COST = load_profile("cpu-demo")


def _unit(cost: StepCost = COST) -> MachineTime:
    return MachineTime(INFO, StepModel(cost))


def _token_s(cost: StepCost = COST) -> float:
    full = StepFeatures(num_prefill_tokens=CHUNK, prefill_attended_tokens=0)
    return cost.price_s(full) / CHUNK


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 64),
    row_context=st.integers(0, 4_096),
    chunk=st.integers(0, CHUNK),
    num_chunks=st.integers(0, 8),
)
def test_what_a_step_charges_is_what_it_takes(
    rows: int, row_context: int, chunk: int, num_chunks: int
) -> None:
    """Rows and the chunk of a prompt pay together for the whole step, and no more."""
    unit, start = _unit(), num_chunks * CHUNK
    step = StepFeatures(
        num_prefill_tokens=chunk,
        num_decode_tokens=rows,
        prefill_context_tokens=start if chunk else 0,
        decode_context_tokens=rows * row_context,
        prefill_attended_tokens=attended_tokens(start, chunk),
    )
    prices = unit.step(step)
    charged = rows * (prices.row + prices.context_token * row_context)
    if chunk:
        charged += unit.rest(start + chunk, start) + unit.chunk_surcharge(start, chunk)
    took = COST.price_s(step) / _token_s()
    # A prompt's chunks are priced as if each read half a chunk more than it finds.
    slack = chunk * (COST.small.per_prefill_context_token_s / 2 + 1e-9) / _token_s()
    assert charged == pytest.approx(took, rel=1e-6, abs=slack + 1e-6)


def test_contexts_are_charged_by_what_rows_sit_out_by() -> None:
    """Where all contexts are alike, no regression's price of them makes one row dearer."""
    model = StepModel()
    for number in range(400):
        num_rows = 16 if number % 20 < 10 else 64
        # All that a row takes could be its context's, and to a regression it is.
        step = StepFeatures(num_decode_tokens=num_rows, decode_context_tokens=50 * num_rows)
        model.observe(step, 1e-3 + 60e-6 * num_rows)
    step = StepFeatures(num_decode_tokens=64, decode_context_tokens=50 * 64)
    coefficients = (1e-3, 1e-5, 1e-6, 1.2e-6, 0.0, 0.0)
    model._small.coefficients = model._large.coefficients = coefficients
    prices, (_, row_s, context_s) = MachineTime(INFO, model).step(step), model.decode_costs(64)
    assert context_s == pytest.approx(row_s / 128)
    token_s = model.price_s(StepFeatures(num_prefill_tokens=CHUNK)) / CHUNK
    assert prices.context_token * token_s == pytest.approx(context_s)


def test_context_is_paid_for() -> None:
    """A token over a long cached context costs what it takes, many times one over a short."""
    unit = _unit(load_profile("a100-llama-3-8b"))
    prices = unit.step(StepFeatures(num_decode_tokens=64, decode_context_tokens=64 * 1_000))
    short, long = (prices.row + prices.context_token * n for n in (500, 8_000))
    assert long > 1.2 * short


def test_small_chunks_of_a_long_prompt_cost_more() -> None:
    """What a chunk reads of the prompt before it is paid for by its tokens, however few."""
    unit = _unit()
    assert unit.chunk_surcharge(0, 16) == 0.0
    assert unit.chunk_surcharge(4_096, CHUNK) == 0.0
    assert unit.chunk_surcharge(4_096, 16) > unit.chunk_surcharge(4_096, 256) > 0.0


def test_a_prompt_is_the_sum_of_its_parts() -> None:
    """What is left of a prompt and what it had are the whole; what was cached costs nothing."""
    unit = _unit()
    whole = unit.prompt(4_000, 0)
    assert whole == pytest.approx(unit.rest(1_500, 0) + unit.rest(4_000, 1_500))
    assert unit.prompt(4_000, 4_000) == unit.rest(4_000, 5_000) == 0.0
    assert whole > 4_000


def test_no_row_is_paid_for_being_in_a_step() -> None:
    """Where the prompt has paid for more than the step takes, the rows in it are free."""
    slow, quick = LinearCost(0.0, 1e-3), LinearCost(0.0, 1e-4)
    unit = _unit(StepCost("kinked", quick, slow, split_num_tokens=CHUNK // 2))
    prices = unit.step(StepFeatures(num_prefill_tokens=100, num_decode_tokens=4))
    assert (prices.row, prices.context_token) == (0.0, 0.0)


def test_no_context_is_paid_for_being_read() -> None:
    """Where steps with longer contexts took less, a row pays as much for a long one as a short."""
    unit, model = _unit(), StepModel(COST)
    unit._step_model = model
    model._small.coefficients = (1e-3, 1e-5, 1e-4, -1e-8, 0.0, 0.0)
    prices = unit.step(StepFeatures(num_decode_tokens=4, decode_context_tokens=4_000))
    assert prices.context_token == 0.0
    took_s = 1e-3 + 4e-4 - 4e-5
    assert 4 * prices.row * unit._token_s == pytest.approx(took_s)


def test_what_costs_nothing_is_priced_at_nothing() -> None:
    """A model that was taught that steps take no time charges nobody, and does not fail."""
    nothing = LinearCost(0.0, 0.0)
    unit = _unit(StepCost("nothing", nothing, nothing))
    assert tuple(unit.step(StepFeatures(num_decode_tokens=4))) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("step", [StepFeatures(8), StepFeatures(num_decode_tokens=8)])
def test_memory_is_paid_for_by_its_share(step: StepFeatures) -> None:
    """Who holds half of the KV cache pays half of what each step takes, in it or not."""
    unit = _unit()
    half = INFO.num_blocks * INFO.block_size / 2
    assert unit.step(step).held_token * half == pytest.approx(COST.price_s(step) / _token_s() / 2)


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_prices_do_not_depend_on_how_fast_the_machine_is(factor: float) -> None:
    """A machine ten times as slow charges the same: only proportions count."""
    line = COST.small
    names = list(LinearCost.__dataclass_fields__)
    slower = replace(line, **{name: factor * getattr(line, name) for name in names})
    unit, other = _unit(), _unit(replace(COST, small=slower, large=slower))
    step = StepFeatures(num_decode_tokens=9, decode_context_tokens=900, num_prefill_tokens=100)
    assert other.step(step) == pytest.approx(unit.step(step))
    assert other.prompt(3_000, 100) == pytest.approx(unit.prompt(3_000, 100))


def test_price_of_an_output_token_follows_what_was_charged() -> None:
    """Predictions go by what rows have cost lately."""
    unit = _unit()
    before = unit.output
    for _ in range(100):
        prices = unit.step(StepFeatures(num_decode_tokens=1))
    assert unit.output == pytest.approx(prices.row, rel=0.01)
    assert unit.output > 2 * before


def test_one_step_hardly_moves_the_price_of_an_output_token() -> None:
    """A sixteenth of what a token of it cost, with the context that it read, is taken in."""
    unit = _unit()
    before = unit.output
    prices = unit.step(StepFeatures(num_decode_tokens=2, decode_context_tokens=9_000))
    cost = prices.row + 4_500 * prices.context_token
    assert cost > prices.row
    assert unit.output == pytest.approx(before + (cost - before) / 16)
