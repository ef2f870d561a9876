"""A sweep of a kernel's settings, with a clock that knows which is best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from engine.kernels import tuned
from scheduler.bench.part import Part
from tests.gpu import tune_kernels
from tests.gpu.asked import Asked
from tests.gpu.attention_cases import AttentionBatch, AttentionCase, Heads
from tests.gpu.deadline import Deadline

CPU = torch.device("cpu")
KERNEL, KEY = "combine_attention", "d16"


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[AttentionBatch]:
    """Batches whose time is the less the more warps they are launched with."""

    def times_ms(_: Callable[..., object], batches: Sequence[AttentionBatch]) -> list[float]:
        warps = tuned.settings(KERNEL, KEY, CPU)["num_warps"]
        return [8 / warps for _ in batches]

    monkeypatch.setattr(tune_kernels, "_times_ms", times_ms)
    monkeypatch.setattr(tuned, "_elsewhere", [])
    heads = Heads(4, 2, 16)
    return [
        AttentionBatch(
            AttentionCase(1, 1, 64), heads, dtype=torch.float32, kv_dtype=torch.float32, device=CPU
        )
    ]


def test_each_candidate_is_stated_and_the_best_is_kept(
    batches: list[AttentionBatch], tmp_path: Path
) -> None:
    """A sweep that is cut short has the times of the candidates before; its end has the best."""
    asked, part = Asked(device="cpu", deadline=Deadline(60), out=tmp_path), Part()
    counts = [
        (len(part.samples[f"tune_{KERNEL}_{KEY}"]["candidates"]), len(part.figures))
        for _ in tune_kernels._tune(KERNEL, batches, asked, part)
    ]
    num_candidates = len(tuned.candidates(KERNEL))
    assert counts == [
        *((number, 0) for number in range(1, num_candidates + 1)),
        (num_candidates, 1),
    ]
    default = tuned.settings(KERNEL, KEY, CPU)["num_warps"]
    assert part.figures[f"tune_{KERNEL}_{KEY}_gain"].value == 8 / default
    tuned.look_in(tmp_path / "tuned_settings")
    assert tuned.settings(KERNEL, KEY, CPU)["num_warps"] == 8
    tuned.forget()


def test_time_that_is_up_keeps_the_best_so_far(
    batches: list[AttentionBatch], tmp_path: Path
) -> None:
    """Where the time suffices for no candidate nothing is kept, and the default stays."""
    asked, part = Asked(device="cpu", deadline=Deadline(0), out=tmp_path), Part()
    assert len(list(tune_kernels._tune(KERNEL, batches, asked, part))) == 1
    assert not part.figures
    assert [row.note for row in part.rows] == ["the default is best"]
    assert not list(tmp_path.iterdir())
