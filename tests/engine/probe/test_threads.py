"""How many threads compute."""

from __future__ import annotations

import pytest
import torch

from engine.probe import threads


def test_threads_are_counted_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number chosen is among those that leave a core free, and torch's own is not changed."""
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda pid: set(range(3)))
    before = torch.get_num_threads()
    assert threads.choose_num_threads() in (1, 2)
    assert torch.get_num_threads() == before
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda pid: {0})
    assert threads.choose_num_threads() == 1
