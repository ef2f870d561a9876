"""`gateway.services.batches.rests`: long work leaves room between its parts."""

from __future__ import annotations

import pytest

from gateway.services.batches.rests import Rests
from tests.fakes import ManualClock


@pytest.mark.anyio
async def test_a_rest_is_as_long_as_the_part_took() -> None:
    """Each part is rested from by itself, in its ratio, and never for long."""
    clock, rested = ManualClock(), []

    async def sleep(for_s: float) -> None:
        rested.append(for_s)
        clock.now += for_s

    rests = Rests(3.0, clock, sleep=sleep)
    for took_s in (0.01, 0.02, 0.0, 50.0):
        clock.now += took_s
        await rests.before_more()
    assert rested == pytest.approx([0.03, 0.06, 0.0, 0.2])
