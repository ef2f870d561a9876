"""The floor of a step's time, against counts made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.models.hf_config import load_model_config
from engine.step_cost import StepFeatures
from scheduler.bench.roofline import Ceilings, ModelWork, StepWork
from scheduler.bench.shapes import SHAPES, write_config


@pytest.fixture
def work(tmp_path: Path) -> ModelWork:
    write_config(SHAPES["llama-30m"], tmp_path)
    return ModelWork(load_model_config(tmp_path), 4)


def test_parameters_of_the_30m_shape(work: ModelWork) -> None:
    """Ten layers of attention and MLP, and the tied head, are 30 million parameters."""
    layer = 4 * 384 * 384 + 3 * 384 * 1024
    assert work.num_parameters == 10 * layer + 32_000 * 384 == 29_982_720


def test_decode_reads_weights_once_and_each_context(work: ModelWork) -> None:
    """A decode step moves the weights once for all rows and every row's keys and values."""
    step = work.decode(8, 8 * 100)
    assert step.size_bytes == 4 * (29_982_720 + 2 * 10 * 384 * 800)
    assert step.flop == 2 * 8 * 29_982_720 + 4 * 10 * 384 * 800


def test_prefill_draws_once(work: ModelWork) -> None:
    """A prompt's tokens all pass the layers, the head is computed for its last one alone."""
    body, head = 10 * (4 * 384 * 384 + 3 * 384 * 1024), 32_000 * 384
    assert work.prefill(100).flop == 2 * (100 * body + head) + 2 * 10 * 384 * 100 * 100


def test_step_of_decodes_and_a_chunk(work: ModelWork) -> None:
    """A mixed step reads every context once, and attends token by token."""
    features = StepFeatures(
        num_prefill_tokens=10,
        num_decode_tokens=2,
        prefill_context_tokens=20,
        decode_context_tokens=100,
    )
    step = work.step(features, 3)
    body, head = 10 * (4 * 384 * 384 + 3 * 384 * 1024), 32_000 * 384
    attended = 102 + 10 * 20 + 55
    assert step.size_bytes == 4 * (29_982_720 + 2 * 10 * 384 * (120 + 12))
    assert step.flop == 2 * (12 * body + 3 * head) + 4 * 10 * 384 * attended


def test_eight_bits_move_fewer_bytes(tmp_path: Path) -> None:
    """Layers and cache count by their own sizes, the head by that of the dtype."""
    write_config(SHAPES["llama-30m"], tmp_path)
    config = load_model_config(tmp_path)
    work = ModelWork(config, 2, body_itemsize=1, kv_itemsize=1)
    body, head = 10 * (4 * 384 * 384 + 3 * 384 * 1024), 32_000 * 384
    assert work.decode(1, 100).size_bytes == body + 2 * head + 2 * 10 * 384 * 100
    assert work.decode(1, 100).flop == ModelWork(config, 2).decode(1, 100).flop


def test_floor_is_the_larger_of_two_times() -> None:
    """A step takes as long as its bytes or its operations, whichever take longer."""
    ceilings = Ceilings(copy_bytes_per_s=10.0, flop_per_s=100.0)
    assert StepWork(20.0, 100.0).floor_s(ceilings) == 2
    assert StepWork(20.0, 900.0).floor_s(ceilings) == 9
