"""A gateway that is killed with requests at every point of their life.

It is started again at once, and killed again while the leases of the dead still run; another one
may be alive all the while. Every reservation that a kill left is watched until it is gone.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tests.soak.balance import (
    HELD_GONE_S,
    LEASES,
    LEDGER_S,
    Balance,
    compare,
    limit,
    nothing_held,
    take_the_rest,
)
from tests.soak.cancellations import POINTS, rows_of, tally, tally_statuses
from tests.soak.fleet import Fleet, until
from tests.soak.request_points import Burst, Call, Point


@dataclass
class KilledMidway:
    """Hold what was seen of a gateway that was killed with requests at each point.

    `held` counts the reservations that were left, `unbilled` whole answers that the ledger does
    not have.
    """

    kills: int = 0
    held: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    held_gone_s: list[float] = field(default_factory=list)
    answers: int = 0
    unbilled: int = 0
    lost_rows: int = 0
    balance: Balance = field(default_factory=Balance)
    seconds: float = 0.0


async def killed_midway(
    fleet: Fleet,
    *,
    rounds: int,
    burst: int,
    points: Sequence[Point] = POINTS,
    hurry: bool = False,
    seed: int = 1,
) -> KilledMidway:
    """Kill the first gateway in the midst of a burst at each point, `rounds` times.

    It is started again at once, and killed again while the leases of the dead still run. With
    `hurry` these run out at once, for who cannot wait.
    """
    result = KilledMidway()
    draw = random.Random(seed)
    began_s = time.monotonic()
    lost_before = (await fleet.ledger())["lost"]
    # What the dead hold counts until it is gone.
    await limit(fleet, concurrency=burst * len(points) * rounds)
    answered: set[str] = set()
    known: set[bytes] = set()
    async with asyncio.TaskGroup() as group:
        for point in points * rounds:
            calls, killed_s = await _kill_at(fleet, point, draw, burst)
            left = set(await fleet.redis.zrange(LEASES, 0, -1)) - known
            known |= left
            if hurry and left:
                await fleet.redis.zadd(LEASES, dict.fromkeys(left, 1), xx=True)
            group.create_task(_note_gone(fleet, left, killed_s, result))
            result.kills += 1
            tally(result.held, [point.value] * len(left))
            tally_statuses(calls, result.statuses)
            answered |= _answered(calls)
            fleet.replicas[0].start()
            await fleet.replicas[0].wait_ready(timeout_s=120)
    await nothing_held(fleet)
    result.answers = len(answered)
    result.unbilled = await _num_unbilled(fleet, answered)
    await compare(fleet, result.balance)
    result.lost_rows = (await fleet.ledger())["lost"] - lost_before
    await take_the_rest(fleet, result.balance)
    result.seconds = time.monotonic() - began_s
    return result


async def _kill_at(
    fleet: Fleet, point: Point, draw: random.Random, size: int
) -> tuple[list[Call], float]:
    """Kill the first gateway once many of a burst are at a point; return the burst, and when."""
    burst = Burst(fleet, point, draw, size=size, rows=rows_of(size))
    there: list[Call] = []
    enough = asyncio.Event()

    def arrived(call: Call) -> None:
        there.append(call)
        if len(there) >= rows_of(size):
            enough.set()

    running = asyncio.create_task(burst.run(arrived))
    waiting = asyncio.create_task(enough.wait())
    try:
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        assert enough.is_set(), f"only {len(there)} came to {point}"
        if point is Point.TOKENISING:
            # Some are to be done with it, and hold something.
            await asyncio.sleep(draw.uniform(0, 0.2))
        killed_s = time.monotonic()
        fleet.replicas[0].send(signal.SIGKILL)
        await fleet.replicas[0].wait_ended()
    finally:
        running.cancel()
        waiting.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        burst.close()
    return burst.calls, killed_s


async def _note_gone(fleet: Fleet, left: set[bytes], since_s: float, result: KilledMidway) -> None:
    async def gone() -> bool:
        scores = await fleet.redis.zmscore(LEASES, list(left))
        return all(score is None for score in scores)

    if left:
        await until(gone, timeout_s=HELD_GONE_S)
        result.held_gone_s.append(time.monotonic() - since_s)


async def _num_unbilled(fleet: Fleet, answered: set[str]) -> int:
    """Count answers that the ledger does not have, once it had its time."""
    unbilled = answered

    async def all_billed() -> bool:
        nonlocal unbilled
        rows = await fleet.database.fetch(
            "SELECT request_id FROM usage_events WHERE outcome = 'completed'"
        )
        unbilled = answered - {row["request_id"].hex for row in rows}
        return not unbilled

    with suppress(TimeoutError):
        await until(all_billed, timeout_s=LEDGER_S)
    return len(unbilled)


def _answered(calls: Sequence[Call]) -> set[str]:
    """Return the ids of the answers that came whole."""
    ids = set()
    for call in calls:
        _, _, body = bytes(call.received).partition(b"\r\n\r\n")
        if call.status == 200 and (b"data: [DONE]" in body or body.endswith(b"}")):
            ids.add(body.partition(b'"id":"cmpl-')[2][:32].decode())
    return ids
