"""How kernels are launched: defaults, what a bench saved, and what it sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.kernels import tuned

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for saved settings that is the test's own."""
    monkeypatch.setattr(tuned, "DIRECTORY", tmp_path)
    monkeypatch.setattr(tuned, "_elsewhere", [])
    tuned.forget()
    yield tmp_path
    tuned.forget()


def test_the_most_special_default_counts() -> None:
    """What was never measured is launched by a default, which depends on the key."""
    wide = tuned.settings("prefill_attention", "d128-bfloat16-h2", CPU)
    assert wide == {"BLOCK_N": 64, "num_warps": 8, "num_stages": 3}
    assert tuned.settings("prefill_attention", "d128-bfloat16-h1", CPU)["num_warps"] == 4
    assert tuned.settings("prefill_attention", "d64-float32-h1", CPU)["BLOCK_N"] == 32
    assert tuned.settings("matvec", "wide-r1-bfloat16", CPU)["LINES"] == 8
    assert tuned.settings("matvec", "narrow-r1-bfloat16", CPU)["LINES"] == 4
    eight_bits = tuned.settings("decode_attention", "d128-bfloat16-float8_e4m3fn", CPU)
    assert eight_bits["num_stages"] == 3


def test_what_was_saved_counts_for_its_key(directory: Path) -> None:
    """Saved settings serve one kernel and key, and leave what was saved before."""
    first = {"BLOCK_N": 128, "num_warps": 2, "num_stages": 5}
    second = {"BLOCK_N": 32, "num_warps": 2, "num_stages": 2}
    default = tuned.settings("decode_attention", "d96-bfloat16", CPU)
    path = tuned.save("decode_attention", "d128-bfloat16", CPU, first)
    tuned.save("decode_attention", "d64-bfloat16", CPU, second)
    assert path == directory / "cpu.json"
    assert tuned.settings("decode_attention", "d128-bfloat16", CPU) == first
    assert tuned.settings("decode_attention", "d64-bfloat16", CPU) == second
    assert tuned.settings("decode_attention", "d96-bfloat16", CPU) == default


def test_what_was_saved_elsewhere_counts_first(directory: Path) -> None:
    """Settings of another folder serve once it is named; what it lacks is looked up here."""
    kept, better = ({"BLOCK_N": 32, "num_warps": 2, "num_stages": n} for n in (2, 3))
    tuned.save("decode_attention", "d64-bfloat16", CPU, kept)
    tuned.save("decode_attention", "d128-bfloat16", CPU, kept)
    path = tuned.save(
        "decode_attention", "d128-bfloat16", CPU, better, directory=directory / "out" / "tuned"
    )
    assert tuned.settings("decode_attention", "d128-bfloat16", CPU) == kept
    tuned.look_in(path.parent)
    assert tuned.settings("decode_attention", "d128-bfloat16", CPU) == better
    # The new file has what the old one had, and can take its place.
    (directory / "cpu.json").unlink()
    tuned.forget()
    assert tuned.settings("decode_attention", "d64-bfloat16", CPU) == kept
    path.unlink()
    tuned.forget()
    tuned.save("decode_attention", "d64-bfloat16", CPU, better)
    assert tuned.settings("decode_attention", "d64-bfloat16", CPU) == better


def test_another_triton_was_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured with one version of Triton says nothing of another."""
    key = "d128-bfloat16"
    default = tuned.settings("decode_attention", key, CPU)
    tuned.save("decode_attention", key, CPU, {"BLOCK_N": 32, "num_warps": 2, "num_stages": 2})
    monkeypatch.setattr("triton.__version__", "99.0.0")
    tuned.forget()
    assert tuned.settings("decode_attention", key, CPU) == default


def test_a_bench_tries_what_it_likes() -> None:
    """A trial outdoes all else, and only while it lasts."""
    default = tuned.settings("decode_attention", "d128-bfloat16", CPU)
    for candidate in tuned.candidates("decode_attention"):
        with tuned.trying("decode_attention", candidate):
            assert tuned.settings("decode_attention", "d128-bfloat16", CPU) == candidate
    assert tuned.settings("decode_attention", "d128-bfloat16", CPU) == default


@pytest.mark.parametrize(
    "kernel", ["decode_attention", "combine_attention", "prefill_attention", "matvec"]
)
def test_candidates_have_the_default(kernel: str) -> None:
    """A sweep cannot end worse than it began: it has the default, and everything once."""
    found = tuned.candidates(kernel)
    assert tuned.settings(kernel, "d128-bfloat16", CPU) in found
    assert len({tuple(candidate.items()) for candidate in found}) == len(found)
