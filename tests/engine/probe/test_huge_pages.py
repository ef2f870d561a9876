"""Moving weights into huge pages changes nothing but where they lie."""

from __future__ import annotations

import ctypes

import pytest
import torch

from engine.models.linear import Layout, Linear
from engine.probe.huge_pages import collapse


def test_values_survive_the_move() -> None:
    """Plain, packed and shared memory holds afterwards what it held before."""
    torch.manual_seed(1)
    plain = torch.randn(2048, 2048)
    linear = Linear(torch.randn(512, 2048))
    linear.lay_out(Layout.PACKED)
    assert linear.packed is not None
    x = torch.randn(3, 512)
    before, product = plain.clone(), linear(x)
    num_pages = collapse([plain, plain[1:], linear.packed])
    assert torch.equal(plain, before)
    assert torch.equal(linear(x), product)
    # 16 MiB and 4 MiB, each with a page that it begins or ends within, and each counted once.
    assert num_pages <= 9 + 3


def test_where_there_is_no_such_call_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A C library without it is no failure."""
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert collapse([torch.ones(1024)]) == 0
