"""The sweep over steps, on a simulated engine whose costs are known."""

from __future__ import annotations

import json
import random
from importlib import resources
from pathlib import Path

import pytest

from engine.demo import MODEL_DIR
from engine.models.hf_config import load_model_config
from engine.simulated import SimulatedEngine
from engine.step_cost import LinearCost, StepCost, StepFeatures, load_profile
from scheduler.bench.drive import BenchError
from scheduler.bench.roofline import Ceilings, ModelWork
from scheduler.bench.setup import Bench, Options
from scheduler.bench.step_sweep import measure_grid, step_sweep
from scheduler.learn.step_fit import fit

SMALL = LinearCost(0.004, 0.0, 3e-5, 2e-5, 2e-7, 1e-7, 4e-8)
TWO_REGIMES = StepCost("two", SMALL, LinearCost(0.02, 0.0, 6e-5, 2e-5, 2e-7, 1e-7, 4e-8))


def make_engine(
    cost: StepCost, *, num_blocks: int = 2048, block_size: int = 64, depth: int = 1
) -> SimulatedEngine:
    return SimulatedEngine(
        cost,
        vocab_size=100,
        max_model_len=1024,
        max_num_seqs=64,
        max_num_batched_tokens=2048,
        num_blocks=num_blocks,
        block_size=block_size,
        depth=depth,
    )


@pytest.mark.parametrize(("block_size", "depth"), [(16, 1), (64, 1), (64, 2)])
def test_costs_of_an_engine_are_found(block_size: int, depth: int) -> None:
    """Every plan of the grid is feasible, and the fit gives back what the engine was made of."""
    engine = make_engine(
        TWO_REGIMES, num_blocks=131_072 // block_size, block_size=block_size, depth=depth
    )
    [samples] = measure_grid(engine, rounds=1)
    assert len({step for step, _ in samples}) == len(samples) > 100
    found = fit(samples, name="found", split_num_tokens=(128, 512))
    # A median of two steps is exact only up to the rows' next token.
    assert found.held_out_mape < 0.001
    assert found.cost.split_num_tokens == 512
    step = StepFeatures(300, 20, 100, 5000)
    assert found.cost.price_s(step) == pytest.approx(TWO_REGIMES.price_s(step), rel=0.001)


def test_engine_without_room() -> None:
    """A KV cache that holds no context beside the rows' own blocks is refused in words."""
    with pytest.raises(BenchError, match="too small to sweep"):
        next(measure_grid(make_engine(TWO_REGIMES, num_blocks=100), rounds=1))


def test_fit_is_reported_and_written(tmp_path: Path) -> None:
    """The part states the held-out error and the steps; the profile says what was measured."""
    path = tmp_path / "mine.json"
    bench = Bench(
        options=Options(profile_out=path, rounds=2),
        slug="tiny",
        uses_native=False,
        own_dtype="float32",
        engine=make_engine(TWO_REGIMES),
        peer=None,
        work=ModelWork(load_model_config(MODEL_DIR), 4),
        ceilings=Ceilings(1e9, 1e9),
        draw=random.Random(1),
    )
    sweep = step_sweep(bench)
    next(sweep)
    # A run that is cut short here keeps the first round's.
    assert path.exists()
    [part] = sweep
    assert part.figures["step_sweep_tiny_held_out_mape"].met
    assert [row.case for row in part.rows] == ["up to 512 tokens", "above 512"]
    profile = json.loads(path.read_text())
    assert (profile["name"], profile["estimate"]) == ("mine", False)
    assert "tiny in float32" in profile["source"]
    assert part.samples["cost"] == {
        key: profile[key] for key in ("name", "small", "large", "split_num_tokens")
    }
    assert len(part.samples["steps"]) > 100


def test_demo_profile_is_a_measurement() -> None:
    """The shipped profile of the demo model is no estimate, and more work costs more."""
    shipped = resources.files("engine") / "profiles" / "cpu-demo.json"
    profile = json.loads(shipped.read_text("utf-8"))
    assert profile["estimate"] is False
    assert "held out" in profile["source"]
    cost = load_profile("cpu-demo")
    empty, decode, prefill, later = (
        cost.price_s(step)
        for step in (
            StepFeatures(),
            StepFeatures(num_decode_tokens=32, decode_context_tokens=3200),
            StepFeatures(num_prefill_tokens=512),
            StepFeatures(num_prefill_tokens=512, prefill_context_tokens=500),
        )
    )
    assert 0 < empty < decode < prefill < later
