"""What the shares of a bench are of is measured in seconds on any machine."""

from __future__ import annotations

import pytest

from scheduler.bench.ceilings import choose_size, measure_ceilings


@pytest.mark.parametrize(
    ("probe_s", "size"), [(0.0005, 2048), (0.001, 2048), (0.027, 512), (0.2, 256), (5.0, 256)]
)
def test_a_slow_processor_multiplies_less(probe_s: float, size: int) -> None:
    """Products are as large as take a second; a type that a processor lacks costs no minutes."""
    assert choose_size(probe_s) == size


def test_ceilings_are_rates() -> None:
    """Both are what memory and arithmetic did, in a type that every processor has."""
    ceilings = measure_ceilings(device="cpu", dtype="float32")
    assert ceilings.copy_bytes_per_s > 1e8
    assert ceilings.flop_per_s > 1e8
