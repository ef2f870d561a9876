"""A gateway that is frozen for longer than its leases, while others use what it held.

It streams for a hard tenant when it is stopped. Its leases run out, another gateway reaps them and
lets requests through up to the cap. Then it goes on, with all that it had been granted: what it
delivers then must not be billed above the cap.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gateway.services.quotas.link import LEASE_S
from tests.soak.faulty_stores import HARD, FaultyStores, faulty_stores, stopped
from tests.soak.fleet import completion, until
from tests.soak.steady_load import Caller, SteadyLoad

_FREEZES: Final = 1
# Six streams hold 272 tokens each; what is left must be used up while they are frozen.
_CAP, _STREAMS, _RATE = 5_000, 6, 20.0
_NEWS_S, _BEGUN_S, _QUIET_S = 1.0, 0.7, 20.0


@dataclass
class Frozen:
    """Hold what was seen; amounts are tokens. `thawed` are answers of the frozen gateway."""

    cap: int
    used_up_frozen: int = 0
    billed_frozen: int = 0
    thawed: dict[str, int] = field(default_factory=dict)
    billed: int = 0
    used: int = 0
    held: int = 0


async def frozen_gateway(directory: Path) -> Frozen:
    """Freeze one of two gateways until the other has reaped its leases and reached the cap."""
    async with faulty_stores(directory, size=2) as stores:
        fleet = stores.fleet
        await fleet.admin("PATCH", f"/quotas/tenant/{HARD}", {"daily_tokens": _CAP})
        await asyncio.sleep(_NEWS_S)
        result = Frozen(_CAP)
        load = SteadyLoad([replica.port for replica in fleet.replicas])
        load.open.remove(_FREEZES)
        stream = Caller("frozen", fleet.key, completion(16, 256, stream=True), streams=True)
        short = Caller("short", fleet.key, completion(16, 4))
        process = fleet.replicas[_FREEZES].process
        assert process is not None
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(load.ask(stream, _FREEZES)) for _ in range(_STREAMS)]
            await asyncio.sleep(_BEGUN_S)
            with stopped([process.pid]):
                async with load.running([short], rate=_RATE):
                    await asyncio.sleep(LEASE_S + 5)
                result.used_up_frozen = sum(await stores.window() or (0, 0))
                result.billed_frozen = await stores.billed(HARD)
        ended = [task.result() for task in streams]
        result.thawed = dict(Counter(f"{one.status} {one.code}".strip() for one in ended))
        await _until_quiet(stores, result)
    return result


async def _until_quiet(stores: FaultyStores, result: Frozen) -> None:
    async def is_quiet() -> bool:
        result.used, result.held = await stores.window() or (-1, -1)
        result.billed = await stores.billed(HARD)
        return result.held == 0 and result.used == result.billed

    try:
        await until(is_quiet, timeout_s=_QUIET_S)
    except TimeoutError:
        return  # the figures say by how much
    # What is late may come still.
    await asyncio.sleep(2)
    await is_quiet()
