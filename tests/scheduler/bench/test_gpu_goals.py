"""Goals that are meant for a GPU."""

from __future__ import annotations

import random

import pytest

from engine.demo import MODEL_DIR
from engine.models.hf_config import load_model_config
from fakes import make_engine
from scheduler.bench.decode_sweep import compare_peer
from scheduler.bench.drive import BenchError
from scheduler.bench.gpu_goals import at_least_on_gpu, at_most_on_gpu
from scheduler.bench.report import Figure
from scheduler.bench.roofline import Ceilings, ModelWork
from scheduler.bench.setup import Bench, Options


def make_bench(device: str, *, eight_bits: bool = False) -> Bench:
    fp8 = "fp8" if eight_bits else None
    return Bench(
        options=Options(device=device, rounds=1, weight_dtype=fp8, kv_dtype=fp8),
        slug="tiny",
        uses_native=False,
        own_dtype="float32",
        engine=make_engine(),
        peer=None,
        work=ModelWork(load_model_config(MODEL_DIR), 4),
        ceilings=Ceilings(1e9, 1e9),
        draw=random.Random(1),
    )


def test_goal_is_there_on_a_gpu_alone() -> None:
    """A figure has its goal where it was measured on a GPU, and is stated plainly elsewhere."""
    cpu, gpu = make_bench("cpu"), make_bench("cuda")
    assert at_least_on_gpu(cpu, 1.0, 2.0, "share") == Figure(1.0, "share")
    assert at_most_on_gpu(cpu, 1.0, 2.0, "share") == Figure(1.0, "share")
    assert at_least_on_gpu(gpu, 1.0, None, "share") == Figure(1.0, "share")
    assert at_least_on_gpu(gpu, 1.0, 2.0, "share").met is False
    assert at_most_on_gpu(gpu, 1.0, 2.0, "share").met is True


def test_eight_bits_have_figures_of_their_own() -> None:
    """What has 8 bits is named in a figure, so that no other's goal or value is taken for it."""
    plain, small = make_bench("cuda"), make_bench("cuda", eight_bits=True)
    assert small.subject == f"{plain.subject}_fp8_fp8kv"


def test_no_peer_is_said() -> None:
    """A comparison without the other side is refused in one line."""
    with pytest.raises(BenchError, match="no peer"):
        compare_peer(make_bench("cpu"))
