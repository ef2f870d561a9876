"""What each kind of launch must move and compute, against counts made by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.models.hf_config import load_model_config
from engine.step_cost import StepFeatures
from scheduler.bench.kernel_work import work_by_launch
from scheduler.bench.roofline import ModelWork, Phase
from scheduler.bench.shapes import SHAPES, write_config

KERNELS = Path(__file__).parents[3] / "engine" / "kernels"
HIDDEN, INTERMEDIATE, QUERY, KV, LAYERS, VOCAB = 1024, 3072, 2048, 2048, 28, 65_536
DECODES = StepFeatures(num_decode_tokens=8, decode_context_tokens=800)


@pytest.fixture
def model(tmp_path: Path) -> ModelWork:
    write_config(SHAPES["qwen3-0.5b"], tmp_path)
    return ModelWork(load_model_config(tmp_path), 2)


def test_products_read_weights_and_activations(model: ModelWork) -> None:
    """A product moves its weights once a step, and its inputs and outputs for every row."""
    work = work_by_launch(model, DECODES, 8)
    sizes = {
        "qkv": (HIDDEN, QUERY + KV),
        "out": (QUERY, HIDDEN),
        "gate_up": (HIDDEN, 2 * INTERMEDIATE),
        "down": (INTERMEDIATE, HIDDEN),
    }
    for name, (inputs, outputs) in sizes.items():
        moved = inputs * outputs + 8 * (inputs + outputs)
        assert work[name] == Phase(2 * LAYERS * moved, 2 * LAYERS * 8 * inputs * outputs)
    logits = VOCAB * HIDDEN + 8 * (HIDDEN + VOCAB)
    assert work["head"] == Phase(2 * logits, 2 * 8 * VOCAB * HIDDEN)


def test_products_are_all_of_a_step(model: ModelWork) -> None:
    """What products and attention compute is what the step computes, a mixed one too."""
    step = StepFeatures(
        num_prefill_tokens=100,
        num_decode_tokens=8,
        prefill_context_tokens=50,
        decode_context_tokens=800,
        prefill_attended_tokens=3000,
    )
    work = work_by_launch(model, step, 9)
    assert sum(phase.flop for phase in work.values()) == model.step(step, 9).flop
    assert work["_prefill_attention"].size_bytes == 2 * LAYERS * KV * 150
    assert work["_decode_attention"].size_bytes == 2 * LAYERS * KV * 808


def test_small_kernels_read_and_write_activations(model: ModelWork) -> None:
    """Each counts what it reads and writes once; norms carry the residual stream along."""
    work = work_by_launch(model, DECODES, 8)
    assert work["_begin_step_kernel"] == Phase(2 * 2 * 8 * HIDDEN)
    # The first of 57 has no sum to read or write, the last none to write.
    assert work["_add_rms_norm_kernel"] == Phase(2 * 8 * HIDDEN * (2 + 55 * 4 + 3))
    assert work["_silu_mul_kernel"] == Phase(2 * LAYERS * 8 * 3 * INTERMEDIATE)
    # Queries are read and written, keys and values as well, into the cache.
    assert work["_rotary_write_kernel"] == Phase(2 * LAYERS * 8 * 2 * (QUERY + KV))
    assert work["_scan_kernel"] == Phase(2 * 8 * VOCAB)


def test_eight_bits_are_counted_as_such(tmp_path: Path) -> None:
    """Weights and their inputs, and the cache, move a byte each; what comes out moves two."""
    write_config(SHAPES["qwen3-0.5b"], tmp_path)
    small = ModelWork(load_model_config(tmp_path), 2, body_itemsize=1, kv_itemsize=1)
    work = work_by_launch(small, DECODES, 8)
    down = INTERMEDIATE * HIDDEN + 8 * INTERMEDIATE + 2 * 8 * HIDDEN
    assert work["down"].size_bytes == LAYERS * down
    assert work["_rotary_write_kernel"].size_bytes == LAYERS * 8 * (4 * QUERY + 2 * KV + KV)
    assert work["_decode_attention"].size_bytes == LAYERS * KV * 808


def test_what_finds_nothing_to_do_has_no_rate(model: ModelWork) -> None:
    """A step of prompts alone has no decodes to attend for, one that draws nothing no head."""
    work = work_by_launch(model, StepFeatures(num_prefill_tokens=100), 0)
    assert not {"_decode_attention", "head", "_scan_kernel"} & set(work)


def test_kernels_are_called_as_the_engine_calls_them(model: ModelWork) -> None:
    """Work goes by names that the engine's kernels have."""
    step = StepFeatures(num_prefill_tokens=1, num_decode_tokens=1)
    names = {name for name in work_by_launch(model, step, 2) if name.startswith("_")}
    sources = "".join(path.read_text() for path in KERNELS.glob("*.py"))
    assert names <= set(re.findall(r"@triton\.jit[^\n]*\ndef (\w+)\(", sources))
