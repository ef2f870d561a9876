"""Keys that are revoked while they are used: how long they still open the door, and to whom.

A key is revoked at one gateway and used at that or another, which learns of it by Redis or, with
Redis away, by itself. Every second key has a stream running, and so is watched; the others are but
cached. Times run from before the revocation is sent.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any, Final

from tests.soak.faulty_stores import SOFT, FaultyStores
from tests.soak.fleet import completion
from tests.soak.steady_load import Asked, Caller, SteadyLoad

_REVOKES: Final = 0
# Longer than any revocation may take.
_STREAM_TOKENS: Final = 1000
_ASK_EVERY_S: Final = 0.1
_USED_S: Final = 0.5
_FOR_EVER_S: Final = 3600.0


@dataclass
class Revoked:
    """Hold the seconds that revocations took. `unended` are streams that came to their own end."""

    requests_s: list[float] = field(default_factory=list)
    streams_s: list[float] = field(default_factory=list)
    answered_s: list[float] = field(default_factory=list)
    unended: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def longest_s(self) -> float:
        """Return how long the slowest took, of requests and streams."""
        return max(self.requests_s + self.streams_s, default=float("inf"))


async def revocations(stores: FaultyStores, *, trials: int, together: int, seed: int) -> Revoked:
    """Revoke so many keys, some at a time; half of them while they stream."""
    result, draw = Revoked(), random.Random(seed)
    load = SteadyLoad([replica.port for replica in stores.fleet.replicas])
    for first in range(0, trials, together):
        count = min(together, trials - first)
        keys = [await _issue(stores) for _ in range(count)]
        await asyncio.gather(
            *(
                _trial(stores, load, key, draw, result, streams=bool(number % 2))
                for number, key in enumerate(keys)
            )
        )
    return result


async def without_redis(stores: FaultyStores, *, trials: int, together: int, seed: int) -> Revoked:
    """The same while nothing passes between gateways and Redis."""
    hole = asyncio.create_task(stores.black_hole_redis(_FOR_EVER_S))
    try:
        return await revocations(stores, trials=trials, together=together, seed=seed)
    finally:
        hole.cancel()
        await asyncio.gather(hole, return_exceptions=True)


async def _issue(stores: FaultyStores) -> dict[str, Any]:
    issued: dict[str, Any] = await stores.fleet.admin("POST", "/keys", {"tenant": SOFT})
    return issued


async def _trial(
    stores: FaultyStores,
    load: SteadyLoad,
    key: dict[str, Any],
    draw: random.Random,
    result: Revoked,
    *,
    streams: bool,
) -> None:
    loop = asyncio.get_running_loop()
    name, gateway = key["kid"], draw.choice(load.open)
    short = Caller(name, key["key"], completion(4, 1))
    asking = asyncio.create_task(_ask_until_refused(load, short, gateway))
    body = completion(4, _STREAM_TOKENS, stream=True)
    stream = Caller(f"{name} stream", key["key"], body, streams=True)
    streaming = asyncio.create_task(load.ask(stream, gateway)) if streams else None
    await asyncio.sleep(_USED_S + draw.random())
    revoked_s = loop.time()
    await stores.fleet.admin("DELETE", f"/keys/{name}", at=_REVOKES)
    result.answered_s.append(loop.time() - revoked_s)
    last = await asking
    result.requests_s.append(max(last.sent_s - revoked_s, 0.0))
    if streaming is not None:
        ended = await streaming
        result.streams_s.append(ended.answered_s - revoked_s)
        if ended.is_whole or "revoked" not in ended.code:
            result.unended += 1
            result.wrong.append(f"a stream: {ended.status} {ended.code}")


async def _ask_until_refused(load: SteadyLoad, caller: Caller, gateway: int) -> Asked:
    """Ask again and again; return the last request that was let through."""
    passed = await load.ask(caller, gateway)
    while True:
        asked = await load.ask(caller, gateway)
        # Whoever asks as often as this is told to wait, at last.
        if asked.status == 401 or asked.code == "too_many_failures":
            return passed
        passed = asked
        await asyncio.sleep(_ASK_EVERY_S)
