"""The measure of what 8 bits cost."""

from __future__ import annotations

import math

import pytest
import torch

from tests.gpu.quality import divergence


def test_divergence_of_distributions() -> None:
    """It is 0 for one distribution however it is shifted, and else what the formula says."""
    expected = torch.tensor([[0.0, 0.0], [0.0, math.log(3.0)]])
    found = torch.tensor([[5.0, 5.0], [0.0, 0.0]])
    kl = divergence(expected, found)
    assert kl[0].item() == pytest.approx(0.0, abs=1e-12)
    assert kl[1].item() == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))
