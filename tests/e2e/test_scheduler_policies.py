"""Two gateways on one store: what an operator sets at one of them is at both, and stays."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Sequence
from typing import Any, Final

import pytest

from tests.made_stores import MadeStores
from tests.passable import passable_directory
from tests.soak.fleet import MODEL, Fleet, running_fleet

pytestmark = pytest.mark.alone

# What is promised, and what a full machine may add to it.
WITHIN_S: Final = 1.0
SLACK_S: Final = 1.0


async def scheduler(fleet: Fleet, at: int) -> dict[str, Any]:
    answer = await fleet.admin("GET", "/scheduler", at=at)
    [model] = answer.pop("data")
    del model["state"]
    return {**answer, **model}


async def until_policy(fleet: Fleet, policy: str, at: Sequence[int]) -> float:
    """Wait until gateways schedule so; return the seconds that took. Raises: `TimeoutError`."""
    began_s = time.monotonic()
    async with asyncio.timeout(WITHIN_S + SLACK_S):
        for gateway in at:
            while (await scheduler(fleet, gateway))["policy"] != policy:
                await asyncio.sleep(0.02)
    return time.monotonic() - began_s


async def restart(fleet: Fleet, at: int, number: signal.Signals = signal.SIGTERM) -> None:
    replica = fleet.replicas[at]
    replica.send(number)
    await replica.wait_ended()
    replica.start()
    await replica.wait_ready(timeout_s=60)


async def go_through(fleet: Fleet) -> list[float]:
    """Change the policy at either gateway, over restarts; return what each took to the other."""
    took_s = []
    for policy, made_at in (("fcfs", 0), ("edf", 1), ("sjf", 0)):
        await fleet.admin("PUT", "/scheduler", {"policy": policy}, at=made_at)
        took_s.append(await until_policy(fleet, policy, at=(1 - made_at, made_at)))

    # One is gone during a change, killed, and begins with what was set meanwhile.
    fleet.replicas[1].send(signal.SIGKILL)
    await fleet.replicas[1].wait_ended()
    await fleet.admin("PUT", "/scheduler", {"policy": "hrrn", "model": MODEL}, at=0)
    fleet.replicas[1].start()
    await fleet.replicas[1].wait_ready(timeout_s=60)
    assert (await scheduler(fleet, 1))["policy"] == "hrrn"
    shown = await scheduler(fleet, 1)
    assert (shown["version"], shown["set"], shown["problem"]) == (4, {"policy": "hrrn"}, None)
    assert shown["origins"]["fairness"]["policy"] == "operators"
    assert shown["origins"]["fairness"]["unit"] == "settings"

    # A newer release, somewhere, sets what these do not know: they serve on, also from a start.
    await fleet.database.execute(
        "UPDATE scheduler_policies SET version = 5, models = $1",
        json.dumps({MODEL: {"policy": "fcfs", "composer": {"later": 1}}}),
    )
    await fleet.redis.incr("sluice:scheduler_epoch")
    async with asyncio.timeout(WITHIN_S + SLACK_S):
        while (await scheduler(fleet, 0))["problem"] is None:
            await asyncio.sleep(0.02)
    assert (await scheduler(fleet, 0))["policy"] == "hrrn"
    await restart(fleet, 0)
    own = await scheduler(fleet, 0)
    assert (own["policy"], own["version"]) == ("vtc/fcfs/fcfs", 5)
    assert "later" in own["problem"]

    # Back to the settings, which are not the same at both.
    await fleet.admin("DELETE", "/scheduler", at=0)
    took_s.append(await until_policy(fleet, "priority", at=[1]))
    took_s.append(await until_policy(fleet, "vtc/fcfs/fcfs", at=[0]))
    assert [(await scheduler(fleet, at))["problem"] for at in (0, 1)] == [None, None]
    verdict = await fleet.admin("GET", "/audit/verify")
    assert verdict["ok"]
    return took_s


@pytest.mark.timeout(180)
def test_a_policy_that_is_set_at_one_gateway_is_at_all(made_stores: MadeStores) -> None:
    """Within a second in either direction, from a start on, and until it is reset."""

    async def run() -> tuple[list[float], str]:
        with passable_directory() as directory:
            made_stores.copy(directory / "stores")
            async with running_fleet(
                directory,
                size=2,
                own=lambda number: {
                    "SLUICE_SCHEDULER_POLICY": ("vtc/fcfs/fcfs", "priority")[number]
                },
            ) as fleet:
                took_s = await go_through(fleet)
            return took_s, "".join(log.read_text() for log in directory.glob("gateway-*.log"))

    took_s, logs = asyncio.run(run())
    assert sorted(took_s)[len(took_s) // 2] < WITHIN_S, took_s
    assert "Traceback" not in logs
    # Once in what ran, and once in what was started on it.
    told = [line for line in logs.splitlines() if "cannot be had here" in line]
    assert len(told) == 3, told
