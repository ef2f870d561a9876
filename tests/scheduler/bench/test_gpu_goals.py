"""Goals that are meant for a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.models.hf_config import load_model_config
from fake_bench import H200, RenewedEngine, make_bench
from scheduler.bench.decode_sweep import compare_peer, decode_sweep
from scheduler.bench.drive import BenchError
from scheduler.bench.gpu_goals import (
    at_least_on_gpu,
    at_most_on_gpu,
    decode_goal,
    decode_share,
    decode_target_s,
    prefill_goal,
)
from scheduler.bench.report import Figure
from scheduler.bench.roofline import ModelWork
from scheduler.bench.workloads import prefill

CONFIGS = Path(__file__).parents[2] / "gpu" / "configs"
# Output tokens/s of an H200 by arithmetic, bfloat16, contexts of 1,024: by batch, floor and target.
EXPECTED = {
    "qwen3-0.6b": {
        1: (3280, 1410), 32: (27_500, 18_500), 128: (33_500, 26_300), 256: (34_300, 27_800),
    },
    "llama-3.2-1b": {
        1: (1716, 1030), 32: (38_400, 25_200), 128: (79_400, 58_200), 256: (89_000, 68_500),
    },
    "qwen3-4b": {
        1: (525, 342), 32: (10_600, 7600), 128: (20_000, 15_500), 256: (21_900, 17_500),
    },
    "llama-3.1-8b": {
        1: (284, 198), 32: (7100, 5200), 128: (17_000, 13_100), 256: (19_800, 15_600),
    },
}  # fmt: skip


def model_work(tmp_path: Path, model: str) -> ModelWork:
    (tmp_path / "config.json").write_bytes((CONFIGS / f"{model}.json").read_bytes())
    return ModelWork(load_model_config(tmp_path), 2)


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
        next(compare_peer(make_bench("cpu")))


@pytest.mark.parametrize("model", EXPECTED)
def test_floor_and_target_of_real_models(tmp_path: Path, model: str) -> None:
    """Both are what the arithmetic of an H200 says, but for what of the logits a draw can save."""
    work = model_work(tmp_path, model)
    for batch, (floor, target) in EXPECTED[model].items():
        step_s = work.decode(batch, batch * 1024).floor_s(H200)
        target_s = decode_target_s(work, batch, batch * 1024, H200)
        assert batch / step_s == pytest.approx(floor, rel=0.025)
        assert batch / target_s == pytest.approx(target, rel=0.035)


@pytest.mark.parametrize(
    ("model", "shares"),
    [
        ("qwen3-0.6b", {1: 0.43, 256: 0.81}),
        ("llama-3.2-1b", {1: 0.60, 256: 0.77}),
        ("qwen3-4b", {1: 0.60, 256: 0.78}),
        ("qwen3-8b", {1: 0.60, 256: 0.78}),
        ("llama-3.1-8b", {1: 0.60, 256: 0.78}),
    ],
)
def test_goal_of_decoding_follows_from_the_shape(
    tmp_path: Path, model: str, shares: dict[int, float]
) -> None:
    """Large models are to reach stated shares, small ones what launches leave them."""
    work = model_work(tmp_path, model)
    for batch, share in shares.items():
        assert decode_share(work, batch, batch * 1024, H200) == pytest.approx(share, abs=0.01)
    assert decode_share(work, 32, 32 * 1024, H200) is None


def test_a_large_models_goal_is_in_reach(tmp_path: Path) -> None:
    """What is stated for large models asks for no more than their own targets."""
    for model in ("qwen3-4b", "qwen3-8b", "llama-3.1-8b"):
        work = model_work(tmp_path, model)
        for batch in (1, 256):
            floor_s = work.decode(batch, batch * 1024).floor_s(H200)
            goal = decode_share(work, batch, batch * 1024, H200)
            assert goal is not None
            assert goal <= floor_s / decode_target_s(work, batch, batch * 1024, H200)


def test_prefill_has_a_goal_for_large_models_alone(tmp_path: Path) -> None:
    """Prompts of 8,192 tokens are to reach 55 % of a product's rate from 4 billion parameters."""
    large = make_bench("cuda", work=model_work(tmp_path, "qwen3-4b"))
    assert prefill_goal(large, 8192) == 0.55
    assert prefill_goal(large, 4096) is prefill_goal(large, 16_384) is None
    small = make_bench("cuda", work=model_work(tmp_path, "llama-3.2-1b"))
    assert prefill_goal(small, 8192) is None


def test_eight_bits_have_no_goal(tmp_path: Path) -> None:
    """Goals are for weights as they are saved."""
    work = model_work(tmp_path, "qwen3-8b")
    plain, fp8 = (make_bench("cuda", work=work, eight_bits=small) for small in (False, True))
    assert decode_goal(plain, 256, 256 * 1024) == 0.78
    assert decode_goal(fp8, 256, 256 * 1024) is None
    assert prefill_goal(fp8, 8192) is None


@pytest.mark.parametrize(
    ("model", "goals"),
    [
        ("qwen3-4b", {"b1_roofline_share": ">= 0.6", "matmul_share": ">= 0.55"}),
        ("qwen3-0.6b", {"b1_roofline_share": ">= 0.429"}),
    ],
)
def test_workloads_state_the_goals(tmp_path: Path, model: str, goals: dict[str, str]) -> None:
    """Decoding and prefill state what their model must reach, and nothing else has a goal."""
    engine = RenewedEngine(max_model_len=8320, max_num_batched_tokens=2048, num_blocks=10_000)
    bench = make_bench("cuda", engine=engine, work=model_work(tmp_path, model), batches=(1, 4))
    figures = [*decode_sweep(bench)][-1].figures | [*prefill(bench)][-1].figures
    stated = {name: figure.goal for name, figure in figures.items() if figure.goal is not None}
    assert {name.partition("tiny_")[2]: goal for name, goal in stated.items()} == goals
