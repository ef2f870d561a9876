"""The floor of a step's time, against counts made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.models.hf_config import load_model_config
from engine.step_cost import StepFeatures
from scheduler.bench.roofline import Ceilings, ModelWork, Phase, StepWork
from scheduler.bench.shapes import SHAPES, write_config


@pytest.fixture
def work(tmp_path: Path) -> ModelWork:
    write_config(SHAPES["llama-30m"], tmp_path)
    return ModelWork(load_model_config(tmp_path), 4)


def test_parameters_of_the_30m_shape(work: ModelWork) -> None:
    """Ten layers of attention and MLP, and the tied head, are 30 million parameters."""
    layer = 4 * 384 * 384 + 3 * 384 * 1024
    assert work.num_parameters == 10 * layer + 32_000 * 384 == 29_982_720


BODY, HEAD = 10 * (4 * 384 * 384 + 3 * 384 * 1024), 32_000 * 384


def test_decode_reads_weights_once_and_each_context(work: ModelWork) -> None:
    """A decode step moves the weights once for all rows, and every row's keys and values."""
    step = work.decode(8, 8 * 100)
    assert step.body == Phase(4 * BODY, 2 * 8 * BODY)
    assert step.attention == Phase(4 * 2 * 10 * 384 * 800, 4 * 10 * 384 * 800)
    assert step.head == Phase(4 * (HEAD + 8 * 32_000), 2 * 8 * HEAD)
    assert step.draw == Phase(4 * 8 * 32_000)


def test_prefill_draws_once(work: ModelWork) -> None:
    """A prompt's tokens all pass the layers, the head is computed for its last one alone."""
    step = work.prefill(100)
    assert step.body == Phase(4 * BODY, 2 * 100 * BODY)
    assert step.head == Phase(4 * (HEAD + 32_000), 2 * HEAD)
    assert step.attention.flop == 4 * 10 * 384 * 100 * 101 // 2


def test_step_of_decodes_and_a_chunk(work: ModelWork) -> None:
    """A mixed step reads every context once, and attends token by token."""
    features = StepFeatures(
        num_prefill_tokens=10,
        num_decode_tokens=2,
        prefill_context_tokens=20,
        decode_context_tokens=100,
    )
    step = work.step(features, 3)
    attended = 102 + 10 * 20 + 55
    assert step.body.flop == 2 * 12 * BODY
    assert step.head == Phase(4 * (HEAD + 3 * 32_000), 2 * 3 * HEAD)
    assert step.attention == Phase(4 * 2 * 10 * 384 * (120 + 12), 4 * 10 * 384 * attended)


def test_step_that_draws_nothing_needs_no_head(work: ModelWork) -> None:
    """A chunk within a prompt has no logits, and so reads no head."""
    step = work.step(StepFeatures(num_prefill_tokens=10), 0)
    assert step.head == step.draw == Phase(0)


def test_eight_bits_move_fewer_bytes(tmp_path: Path) -> None:
    """Layers and cache count by their own sizes, head and logits by that of the dtype."""
    write_config(SHAPES["llama-30m"], tmp_path)
    config = load_model_config(tmp_path)
    step = ModelWork(config, 2, body_itemsize=1, kv_itemsize=1).decode(1, 100)
    assert step.body.size_bytes == BODY
    assert step.attention.size_bytes == 2 * 10 * 384 * 100
    assert step.head.size_bytes == 2 * (HEAD + 32_000)
    assert step.draw.size_bytes == 2 * 32_000
    assert step.flop == ModelWork(config, 2).decode(1, 100).flop


def test_floor_is_the_sum_of_phases() -> None:
    """Each phase takes the larger of its two times, and they run one after another."""
    ceilings = Ceilings(copy_bytes_per_s=10.0, flop_per_s=100.0)
    assert Phase(20.0, 100.0).floor_s(ceilings) == 2
    assert Phase(20.0, 900.0).floor_s(ceilings) == 9
    step = StepWork(Phase(20.0, 900.0), Phase(50.0, 100.0), Phase(10.0, 200.0), Phase(30.0))
    assert step.floor_s(ceilings) == 9 + 5 + 2 + 3
    assert (step.size_bytes, step.flop) == (110.0, 1200.0)
