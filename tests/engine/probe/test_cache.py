"""The kept answers of probes: found again, and never believed blindly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.models.linear import Layout, Linear
from engine.native import library
from engine.probe import bfloat16, layouts
from engine.probe import cache as probe_cache

_IS_BUSY = probe_cache.is_busy


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else computes on this machine, whatever else does."""
    monkeypatch.setattr(probe_cache, "is_busy", lambda: False)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep answers in an empty directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return library.compiled_path().parent


class Asked:
    """Answer with 1, 2, 3 …, and so tell how often it was asked."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return self.count


def decode(kept: object) -> int:
    if not isinstance(kept, int):
        raise ValueError("no number")
    return kept


def recall(question: list[object], ask: Callable[[], int]) -> int:
    return probe_cache.recall(question, ask, encode=lambda answer: answer, decode=decode)


def test_an_answer_is_kept_for_its_question(cache: Path) -> None:
    """A question is asked once, whatever else is asked in between."""
    ask = Asked()
    assert [recall(["a", 1], ask), recall(["a", 2], ask), recall(["a", 1], ask)] == [1, 2, 1]
    assert len(list(cache.iterdir())) == 2


def test_what_a_busy_machine_answers_serves_it_while_it_is(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked once while it is busy; the first start that finds it quiet asks for good."""
    ask = Asked()
    monkeypatch.setattr(probe_cache, "is_busy", _IS_BUSY)
    found = []
    for load in (1000.0, 0.1, 1000.0):
        monkeypatch.setattr(probe_cache.os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        found += [recall(["a"], ask), recall(["a"], ask)]
    assert found == [1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'"text"', b"null"])
def test_a_damaged_file_is_replaced(cache: Path, content: bytes) -> None:
    """What is no answer is asked for again, and the new answer is kept."""
    ask = Asked()
    recall(["a"], ask)
    (path,) = cache.iterdir()
    path.write_bytes(content)
    assert [recall(["a"], ask), recall(["a"], ask)] == [2, 2]


def test_another_library_asks_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another torch, processor or source, which names the library otherwise, shares nothing."""
    ask = Asked()
    recall(["a"], ask)
    monkeypatch.setattr(library.torch, "__version__", "0.0")
    assert recall(["a"], ask) == 2


def test_a_directory_that_cannot_be_written_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is then asked for at each start."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    ask = Asked()
    assert [recall(["a"], ask), recall(["a"], ask)] == [1, 2]


def test_a_model_is_raced_for_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same shapes start without a race; others, and a kept layout that is none, race."""
    raced: list[int] = []

    def choose_layout(weights: list[torch.Tensor]) -> Layout:
        raced.append(len(weights))
        return Layout.PACKED

    monkeypatch.setattr(layouts, "choose_layout", choose_layout)

    def lay_out(num_layers: int) -> list[Linear]:
        linears = [Linear(torch.randn(64, 96)) for _ in range(num_layers)]
        layouts.lay_out(linears, native=False)
        return linears

    lay_out(2)
    assert all(linear.packed is not None for linear in lay_out(2))
    assert raced == [2]
    lay_out(3)
    assert raced == [2, 3]
    for kept in ([["thin", 0]], [["packed", 2]], [["packed"]], []):
        for path in cache.iterdir():
            path.write_text(json.dumps(kept))
        lay_out(2)
    assert raced == [2, 3, 2, 2, 2, 2]


def test_what_a_model_computes_in_is_raced_for_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start on the same machine computes as the last one did, so that a seed draws the same."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    verdicts = iter([True, False, False, True])
    monkeypatch.setattr(bfloat16, "_wins_at", lambda rows: next(verdicts))
    assert [bfloat16.bfloat16_wins() for _ in range(3)] == [False] * 3
    [kept] = cache.iterdir()
    kept.write_text("1")
    assert not bfloat16.bfloat16_wins()
