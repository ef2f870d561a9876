"""Clients that leave at every point of a request's life.

The tenant and its key have every kind of limit, and may run exactly as many requests at a time as
one burst sends: a hold that stays makes the next burst meet a 429 that nobody caused. After each
burst what is held is read until it is nothing, and counters and ledger are compared. At the end
one request gets all that is left.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.soak.balance import LIMITS, Balance, compare, limit, nothing_held, serving, take_the_rest
from tests.soak.fleet import Fleet, running_fleet
from tests.soak.request_points import STEP_TOKENS, Burst, Call, Point

POINTS: Final = tuple(Point)
# By then a request that was left while it was tokenised has had its limits checked.
_STEADY_S: Final = 0.3


@dataclass
class Cancelled:
    """Hold what was seen of clients that left.

    `rows` counts what the ledger has of each point: `nothing` was used, `part` of what was asked
    for, or the `whole`. A request whose client left before it was read has no row.
    """

    cancellations: int = 0
    by_point: dict[str, int] = field(default_factory=dict)
    rows: dict[str, dict[str, int]] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    held_gone_s: list[float] = field(default_factory=list)
    balance: Balance = field(default_factory=Balance)
    seconds: float = 0.0


@asynccontextmanager
async def arena(
    directory: Path, *, gateways: int, burst: int, **more_settings: str
) -> AsyncIterator[Fleet]:
    """Run gateways that compute a third of a burst at a time, which is all that may run."""
    settings = {
        "SLUICE_MAX_NUM_SEQS": str(rows_of(burst)),
        "SLUICE_MAX_NUM_BATCHED_TOKENS": str(STEP_TOKENS),
        **more_settings,
    }
    async with running_fleet(directory, size=gateways, **settings) as fleet:
        await limit(fleet, **LIMITS, concurrency=burst)
        await serving(fleet)
        yield fleet


async def cancellations(fleet: Fleet, *, count: int, burst: int, seed: int = 1) -> Cancelled:
    """Leave `count` requests or more, as many at each point, at the first gateway."""
    result = Cancelled()
    draw = random.Random(seed)
    began_s = time.monotonic()
    times = []
    for point in POINTS:
        times.append(datetime.now(UTC))
        while result.by_point.get(point.value, 0) < count / len(POINTS):
            await _leave_burst(fleet, point, draw, burst, result)
    times.append(datetime.now(UTC))
    result.cancellations = sum(result.by_point.values())
    await take_the_rest(fleet, result.balance)
    for point, since, before in zip(POINTS, times[:-1], times[1:], strict=True):
        result.rows[point.value] = await _num_rows(fleet, since, before)
    result.seconds = time.monotonic() - began_s
    return result


async def _leave_burst(
    fleet: Fleet, point: Point, draw: random.Random, size: int, result: Cancelled
) -> None:
    burst = Burst(fleet, point, draw, size=size, rows=rows_of(size))

    def leave(call: Call) -> None:
        call.leave(reset=draw.random() < 0.5)
        tally(result.by_point, [point.value])

    try:
        await burst.run(leave)
    finally:
        burst.close()
    result.held_gone_s.append(await nothing_held(fleet, for_s=_STEADY_S))
    tally_statuses(burst.calls, result.statuses)
    await compare(fleet, result.balance)


async def _num_rows(fleet: Fleet, since: datetime, before: datetime) -> dict[str, int]:
    row = await fleet.database.fetchrow(
        "SELECT count(*) FILTER (WHERE input_tokens = 0) AS nothing, "
        "count(*) FILTER (WHERE input_tokens > 0 AND outcome = 'cancelled') AS part, "
        "count(*) FILTER (WHERE outcome = 'completed') AS whole FROM usage_events "
        "WHERE at >= $1 AND at < $2",
        since,
        before,
    )
    assert row is not None
    return {name: int(value) for name, value in row.items()}


def rows_of(burst: int) -> int:
    """Return how many of a burst are computed at a time."""
    return burst // 3


def tally_statuses(calls: Sequence[Call], statuses: dict[str, int]) -> None:
    """Count what was answered, as far as it was seen."""
    tally(statuses, (str(call.status) for call in calls if call.status is not None))


def tally(counts: dict[str, int], names: Iterable[str]) -> None:
    """Count names."""
    for name in names:
        counts[name] = counts.get(name, 0) + 1
