"""Clients that leave and gateways that die, at a small size; `make soak` has the full one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.services.quotas.link import LEASE_S
from tests.made_stores import MadeStores
from tests.soak.balance import REST, Balance
from tests.soak.cancellations import POINTS, Cancelled, arena, cancellations
from tests.soak.killed_midway import KilledMidway, killed_midway
from tests.soak.request_points import Point

BURST = 12
# Before it holds output, while it does, and as it is billed.
KILLED_AT = (Point.PREFILL, Point.MIDDLE, Point.SETTLING)
# Its counters begin with it: nobody else's could come back to them.
ALONE = {"SLUICE_QUOTA_BUILD_S": "0"}
EVEN = Balance(rest_status=200, rest_tokens=REST, after_rest_status=429)


def test_a_client_that_leaves_leaves_nothing_held(data_dir: Path, made_stores: MadeStores) -> None:
    """Wherever it leaves, its holds go by themselves, and no later request is refused."""

    made_stores.copy(data_dir.parent / "stores")

    async def leave() -> Cancelled:
        async with arena(data_dir.parent, gateways=1, burst=BURST, **ALONE) as fleet:
            return await cancellations(fleet, count=len(POINTS), burst=BURST)

    result = asyncio.run(leave())
    assert all(result.by_point[point.value] for point in POINTS)
    assert max(result.held_gone_s) < LEASE_S
    assert set(result.statuses) == {"200"}
    assert result.balance == EVEN
    # The points were met: these had not begun, those had in part, and those were over.
    assert result.rows["queued"]["nothing"] > 0
    assert result.rows["prefill"]["part"] > 0
    assert result.rows["middle"]["part"] > 0
    assert result.rows["settling"]["whole"] > 0


def test_a_gateway_that_dies_leaves_nothing_held(data_dir: Path, made_stores: MadeStores) -> None:
    """Once its leases have run out all is let go, and whoever had an answer is billed for it."""

    made_stores.copy(data_dir.parent / "stores")

    async def kill() -> KilledMidway:
        async with arena(data_dir.parent, gateways=1, burst=BURST, **ALONE) as fleet:
            return await killed_midway(fleet, rounds=1, burst=BURST, points=KILLED_AT, hurry=True)

    result = asyncio.run(kill())
    assert result.kills == len(KILLED_AT)
    assert all(result.held[point.value] for point in KILLED_AT)
    assert set(result.statuses) == {"200"}
    assert result.unbilled == 0
    assert result.balance == EVEN
