"""Whether the counters of one tenant and its key hold nothing, and agree with the ledger.

What is held is read from Redis itself, every field of both scopes, and the leases; what was used
is compared to the token and the nano-dollar, in every window of both.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tests.counted import counted
from tests.faults.cases import Target, post
from tests.faults.wire import Answer, read_answer
from tests.soak.fleet import MODEL, TENANT, Fleet, completion, until

LEASES: Final = "sluice:q:leases"
_PLENTY: Final = 1_000_000_000_000
# Of every kind but concurrency, and so large that no request meets one.
LIMITS: Final = {
    "rpm": 10_000_000,
    "input_tpm": 1_000_000_000,
    "output_tpm": 1_000_000_000,
    "queued_tokens": 10_000_000,
    "daily_tokens": _PLENTY,
    "monthly_tokens": _PLENTY,
    "budget_nano_usd": 1000 * _PLENTY,
    "budget_window": "month",
}
_COUNTS: Final = ("run", "queue")
_TOKENS, _NANO_USD = ("tokens.day", "tokens.month"), ("usd.month",)

HELD_GONE_S: Final = 45.0
LEDGER_S: Final = 10.0
# A gateway has learned of new limits by then.
LIMITS_S: Final = 1.5
# Of the output more than the first grant, so that the last of it is an extension.
_REST_PROMPT, _REST_OUTPUT = 740, 260
REST: Final = _REST_PROMPT + _REST_OUTPUT


@dataclass
class Balance:
    """Hold how far counters and ledger were apart, at most, and what the last requests got.

    `rest_tokens` is what the one request for all that was left used; after it nothing fits.
    """

    tokens_apart: int = 0
    nano_usd_apart: int = 0
    rest_status: int = 0
    rest_tokens: int = 0
    after_rest_status: int = 0


async def limit(fleet: Fleet, *, wait_s: float = LIMITS_S, **limits: Any) -> None:
    """Set limits of the tenant and of its key, and wait until they hold."""
    for path in (f"tenant/{TENANT}", f"key/{fleet.key_id}"):
        await fleet.admin("PATCH", f"/quotas/{path}", limits)
    await asyncio.sleep(wait_s)


async def serving(fleet: Fleet) -> None:
    """Wait until every gateway lets a request through.

    Counters that begin let nothing through until every gateway may have come back.
    """
    for at in range(len(fleet.replicas)):

        async def served(at: int = at) -> bool:
            return (await ask(fleet, completion(1, 1), at=at)).status == 200

        await until(served, timeout_s=30)


async def ask(fleet: Fleet, body: bytes, *, at: int = 0) -> Answer:
    """Ask one gateway for a completion."""
    target = Target("127.0.0.1", fleet.replicas[at].port, fleet.key, MODEL)
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(target.host, target.port)
        try:
            writer.write(post(target, "/v1/completions", body, close=True))
            return await read_answer(reader)
        finally:
            writer.transport.abort()


async def held(fleet: Fleet) -> dict[str, int]:
    """Return all that is held; nothing of it is 0."""
    found = {}
    for scope, fields in (await _scopes(fleet)).items():
        for name, value in fields.items():
            if value and (name in _COUNTS or ":h:" in name):
                found[f"{scope} {name}"] = value
    leases = await fleet.redis.zcard(LEASES)
    return found | ({"leases": leases} if leases else {})


async def nothing_held(fleet: Fleet, *, for_s: float = 0.0) -> float:
    """Wait until nothing was held for so long; return how long anything was.

    A request that its client has left may still come to hold something. Raises: `TimeoutError`.
    """
    began_s = last_s = time.monotonic()

    async def nothing() -> bool:
        nonlocal last_s
        found = await held(fleet)
        now_s = time.monotonic()
        if found:
            last_s = now_s
        return now_s - last_s >= for_s and not found

    await until(nothing, timeout_s=HELD_GONE_S, every_s=0.005)
    return last_s - began_s


async def compare(fleet: Fleet, balance: Balance) -> None:
    """Note by how much the counters differ from the ledger, once it had its time."""
    apart = (0, 0)

    async def agree() -> bool:
        nonlocal apart
        ledger, scopes = await fleet.ledger(), await _scopes(fleet)
        apart = (
            _apart(scopes, _TOKENS, ledger["tokens"]),
            _apart(scopes, _NANO_USD, ledger["nano_usd"]),
        )
        return apart == (0, 0)

    with suppress(TimeoutError):
        await until(agree, timeout_s=LEDGER_S, every_s=0.05)
    balance.tokens_apart = max(balance.tokens_apart, apart[0])
    balance.nano_usd_apart = max(balance.nano_usd_apart, apart[1])


async def take_the_rest(fleet: Fleet, balance: Balance) -> None:
    """Leave so much of the day, ask for all of it in one request, then for one token more."""
    used, _ = await fleet.window()
    await limit(fleet, daily_tokens=used + REST)
    answer = await ask(fleet, completion(_REST_PROMPT, _REST_OUTPUT))
    balance.rest_status = answer.status
    if answer.status == 200:
        balance.rest_tokens = json.loads(answer.body)["usage"]["total_tokens"]
    balance.after_rest_status = (await ask(fleet, completion(1, 1))).status
    await limit(fleet, daily_tokens=_PLENTY, wait_s=0)
    await nothing_held(fleet)
    await compare(fleet, balance)


async def _scopes(fleet: Fleet) -> dict[str, dict[str, int]]:
    scopes = (f"tenant:{fleet.tenant_id}", f"key:{fleet.key_id}")
    async with fleet.redis.pipeline(transaction=True) as pipe:
        for scope in scopes:
            pipe.get(f"sluice:q:{scope}")
        found = await pipe.execute()
    return {
        scope: {name: int(value) for name, value in counted(stored).items()}
        for scope, stored in zip(scopes, found, strict=True)
    }


def _apart(scopes: dict[str, dict[str, int]], windows: tuple[str, ...], in_ledger: int) -> int:
    """Return how far the worst of some windows is from the ledger."""
    worst = 0
    for fields in scopes.values():
        for window in windows:
            # All slots: midnight may have passed.
            slots = [value for name, value in fields.items() if name.startswith(f"{window}:u:")]
            assert slots, f"{window} is not counted"
            worst = max(worst, abs(sum(slots) - in_ledger))
    return worst
