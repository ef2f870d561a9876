"""Keyed calls that are sent again and again, through proxies that lose some of the replies.

Two gateways share their stores. Each call has an `Idempotency-Key` and is sent two to six times,
to either gateway, one after the other or all at once, and then until an answer came whole. At the
end each key has one row in the ledger, with the tokens that its answer says, all of its whole
answers are the same bytes, and the ledger has what the engines counted.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from tests.faults.cases import Target, post
from tests.faults.proxy import Fault, FaultProxy
from tests.faults.wire import Answer, BadAnswer, NoAnswer, read_answer
from tests.soak.balance import LIMITS, Balance, compare, limit, nothing_held, serving
from tests.soak.fleet import MODEL, Fleet, completion, running_fleet

GATEWAYS: Final = 2
CLIENTS: Final = 32
# Some of those that are to be cut are shorter than that: a tenth of all replies is lost.
_CUT_SHARE: Final = 0.16
_CUT_BYTES_MAX: Final = 6000
_DONE: Final = b"data: [DONE]\n\n"
_PAUSE_S: Final = 0.1
_SENDS_MAX: Final = 200


@dataclass
class Once:
    """Hold what was seen. `replayed` counts keys with more whole answers than one.

    `different` names keys whose whole answers were not the same bytes, or that got none;
    `wrongly_billed` those
    whose answer the ledger has not, or with other tokens.
    """

    keys: int = 0
    streams: int = 0
    sends: int = 0
    statuses: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    connections: int = 0
    lost_replies: int = 0
    answers: int = 0
    replayed: int = 0
    different: list[str] = field(default_factory=list)
    wrongly_billed: list[str] = field(default_factory=list)
    rows: int = 0
    requests_in_rows: int = 0
    answer_tokens: int = 0
    ledger_tokens: int = 0
    engine_tokens: int = 0
    engine_requests: int = 0
    balance: Balance = field(default_factory=Balance)
    seconds: float = 0.0


@dataclass
class _Keyed:
    """Hold one call and its whole answers' bodies, each once."""

    key: str
    body: bytes
    stream: bool
    num_answers: int = 0
    bodies: set[bytes] = field(default_factory=set)


@dataclass
class _Counted:
    """Hold which requests the ledger has, and what the engines have counted."""

    billed: list[UUID]
    engine_tokens: int = 0
    engine_requests: int = 0

    @classmethod
    async def of(cls, fleet: Fleet) -> _Counted:
        rows = await fleet.database.fetch("SELECT request_id FROM usage_events")
        counted = cls([row["request_id"] for row in rows])
        for at in range(len(fleet.replicas)):
            view = await fleet.admin("GET", "/scheduler", at=at)
            counts = view["data"][0]["state"]["counts"]
            counted.engine_tokens += counts["num_prompt_tokens"] + counts["num_output_tokens"]
            counted.engine_requests += counts["num_finished"]
        return counted


async def exactly_once(
    directory: Path, *, keys: int, clients: int = CLIENTS, seed: int = 1, **settings: str
) -> Once:
    """Make `keys` calls. `settings` are environment variables of all gateways."""
    result = Once(keys)
    calls = [_keyed(random.Random(f"{seed}:{number}"), number) for number in range(keys)]
    async with running_fleet(
        directory, size=GATEWAYS, SLUICE_MAX_NUM_SEQS="64", **settings
    ) as fleet:
        await limit(fleet, **LIMITS, concurrency=1000)
        await serving(fleet)
        # Then what waited for the counters to begin is in the ledger.
        await compare(fleet, result.balance)
        before = await _Counted.of(fleet)
        began_s = time.monotonic()
        async with AsyncExitStack() as stack:
            proxies = []
            for number, replica in enumerate(fleet.replicas):
                draw = random.Random(f"{seed}:proxy:{number}")
                proxy = FaultProxy("127.0.0.1", replica.port, choose=lambda d=draw: _fault(d))
                proxies.append(await stack.enter_async_context(proxy))
            targets = [Target("127.0.0.1", proxy.port, fleet.key, MODEL) for proxy in proxies]
            left = iter(calls)
            async with asyncio.TaskGroup() as group:
                for number in range(clients):
                    draw = random.Random(f"{seed}:client:{number}")
                    group.create_task(_be_client(targets, left, draw, result))
            result.connections = sum(proxy.counts.accepted for proxy in proxies)
            result.lost_replies = sum(proxy.counts.cuts for proxy in proxies)
        result.seconds = time.monotonic() - began_s
        await nothing_held(fleet)
        await compare(fleet, result.balance)
        await _judge(fleet, calls, before, result)
    return result


async def _be_client(
    targets: list[Target], left: Iterator[_Keyed], draw: random.Random, result: Once
) -> None:
    for call in left:
        sends = 1 + draw.randrange(1, 6)
        if draw.random() < 0.5:
            await asyncio.gather(*(_send(draw.choice(targets), call, result) for _ in range(sends)))
        else:
            for _ in range(sends):
                await _send(draw.choice(targets), call, result)
        for _ in range(_SENDS_MAX):
            if call.num_answers:
                break
            await asyncio.sleep(_PAUSE_S)
            await _send(draw.choice(targets), call, result)


async def _send(target: Target, call: _Keyed, result: Once) -> None:
    """Send a call once, and keep its answer if it comes whole."""
    result.sends += 1
    request = post(
        target,
        "/v1/completions",
        call.body,
        b"idempotency-key: %b" % call.key.encode(),
        close=True,
    )
    try:
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(target.host, target.port)
            try:
                writer.write(request)
                answer = await read_answer(reader)
            finally:
                writer.transport.abort()
    except (NoAnswer, BadAnswer, OSError, asyncio.IncompleteReadError) as exc:
        result.statuses[type(exc).__name__] += 1
        return
    if answer.status == 200 and not _is_whole(call, answer):
        result.statuses["not whole"] += 1
        return
    result.statuses[str(answer.status)] += 1
    if answer.status == 200:
        call.num_answers += 1
        call.bodies.add(answer.body)


async def _judge(fleet: Fleet, calls: list[_Keyed], before: _Counted, result: Once) -> None:
    """Hold the answers against the ledger and the engines' counts."""
    rows = await fleet.database.fetch(
        "SELECT request_id, input_tokens, cached_tokens, output_tokens FROM usage_events "
        "WHERE request_id <> ALL($1)",
        before.billed,
    )
    billed: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for row in rows:
        tokens = (row["input_tokens"], row["cached_tokens"], row["output_tokens"])
        billed[row["request_id"].hex].append(tokens)
        result.ledger_tokens += tokens[0] + tokens[2]
    result.rows, result.requests_in_rows = len(rows), len(billed)
    for call in calls:
        result.streams += call.stream
        result.answers += call.num_answers
        result.replayed += call.num_answers > 1
        if len(call.bodies) != 1:
            result.different.append(call.key)
            continue
        request_id, used = _usage(call)
        result.answer_tokens += used[0] + used[2]
        if billed[request_id] != [used]:
            result.wrongly_billed.append(f"{call.key}: {used}, in the ledger {billed[request_id]}")
    now = await _Counted.of(fleet)
    result.engine_tokens = now.engine_tokens - before.engine_tokens
    result.engine_requests = now.engine_requests - before.engine_requests


def _keyed(draw: random.Random, number: int) -> _Keyed:
    stream = number % 2 == 0
    more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    body = completion(draw.randrange(2, 200), draw.randrange(1, 40), **(more if stream else {}))
    return _Keyed(f"order-{number}", body, stream)


def _fault(draw: random.Random) -> Fault | None:
    """Choose whether a connection loses its reply, and after how many bytes."""
    if draw.random() >= _CUT_SHARE:
        return None
    num_bytes = int(math.exp(draw.uniform(0, math.log(_CUT_BYTES_MAX)))) - 1
    return Fault(cut_after_bytes=num_bytes, reset=draw.random() < 0.5)


def _is_whole(call: _Keyed, answer: Answer) -> bool:
    # Where a length or chunks frame it, a body that breaks off was noticed already.
    return answer.body.endswith(_DONE if call.stream else b"}")


def _usage(call: _Keyed) -> tuple[str, tuple[int, int, int]]:
    """Return what the answer says: the request's id; input, cached and output tokens."""
    [body] = call.bodies
    if call.stream:
        body = body.removesuffix(_DONE).rstrip().rpartition(b"data: ")[2]
    document = json.loads(body)
    used = document["usage"]
    cached = used["prompt_tokens_details"]["cached_tokens"]
    request_id = document["id"].removeprefix("cmpl-")
    return request_id, (used["prompt_tokens"], cached, used["completion_tokens"])
