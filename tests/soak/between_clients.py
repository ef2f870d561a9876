"""Clients that go on asking whatever becomes of it, and note what each request got.

They ask gateways at random, for short answers and long streams; some leave midway. Most ask by one
of many keys, each with a hard cap that is soon used up: that which is in turn, and now and then an
earlier one, so that whatever is let go of a cap is used at once. The others' tenant has rates.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.faults.cases import Target, post
from tests.faults.wire import BadAnswer, NoAnswer, read_body, read_head
from tests.soak.fleet import MODEL, completion

_GIVE_UP_S: Final = 60.0
_DONE: Final = b"data: [DONE]\n\n"
_SOFT_SHARE, _EARLIER_SHARE, _LEAVING_SHARE = 0.2, 0.3, 0.05
# A grant is 256 tokens: the longest need three more, and run for longer than a turn.
_LONG, _LONGEST = 60, 800
_LONG_SHARE: Final = 0.3
_THINK_S, _RETRY_S = 0.2, 0.6
# So many keys before the one in turn are asked by still: what is held of them is let go by then.
_EARLIER: Final = 10


@dataclass(frozen=True, slots=True)
class CappedKey:
    """Name a key with a hard cap."""

    token: str
    id: str


@dataclass(slots=True)
class Got:
    """Say what a request got: its id where a head came, and of a whole answer its tokens."""

    key_id: str
    request_id: str = ""
    status: int = 0
    is_whole: bool = False
    has_left: bool = False
    tokens: int = 0


@dataclass
class Crowd:
    """Ask until `over`; `got` has every request that was sent."""

    ports: Sequence[int]
    keys: Sequence[CappedKey]
    soft_key: str
    seed: int
    got: list[Got] = field(default_factory=list)
    words: Counter[str] = field(default_factory=Counter)
    in_turn: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, num_clients: int) -> None:
        """Be so many clients; returns when the last of them has its last answer."""
        async with asyncio.TaskGroup() as group:
            for number in range(num_clients):
                group.create_task(self._be_client(random.Random(f"{self.seed}:{number}")))

    async def touch(self) -> None:
        """Ask once more by every key, so that counters that begin anew count all of them."""
        draw = random.Random(self.seed)
        for number in range(self.in_turn + 1):
            async with asyncio.timeout(_GIVE_UP_S):
                while (await self._ask(draw, number, is_short=True))[0] not in (200, 429):
                    await asyncio.sleep(_RETRY_S)

    async def _be_client(self, draw: random.Random) -> None:
        while not self.over.is_set():
            number = self._number(draw)
            status, code = await self._ask(draw, number)
            self.words[f"{status} {code}".strip()] += 1
            if status == 429 and number == self.in_turn and number + 1 < len(self.keys):
                self.in_turn += 1
            await asyncio.sleep(draw.uniform(0, _THINK_S if status == 200 else _RETRY_S))

    def _number(self, draw: random.Random) -> int | None:
        if draw.random() < _SOFT_SHARE:
            return None
        if draw.random() < _EARLIER_SHARE:
            return max(self.in_turn - draw.randrange(_EARLIER), 0)
        return self.in_turn

    async def _ask(
        self, draw: random.Random, number: int | None, *, is_short: bool = False
    ) -> tuple[int, str]:
        key = CappedKey(self.soft_key, "") if number is None else self.keys[number]
        got = Got(key.id)
        self.got.append(got)
        is_long = not is_short and draw.random() < _LONG_SHARE
        stream = is_long or draw.random() < 0.3
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        num_output = draw.randrange(_LONG, _LONGEST) if is_long else draw.randrange(1, _LONG)
        body = completion(draw.randrange(1, 60), num_output, **more)
        target = Target("127.0.0.1", draw.choice(self.ports), key.token, MODEL)
        leaves_s = draw.uniform(0, 2) if draw.random() < _LEAVING_SHARE else None
        try:
            async with asyncio.timeout(leaves_s or _GIVE_UP_S):
                return await _exchange(target, body, got, stream=stream)
        except TimeoutError:
            got.has_left = True
            return got.status, "left" if leaves_s else "hung"
        except (NoAnswer, BadAnswer, OSError, asyncio.IncompleteReadError) as exc:
            return got.status, type(exc).__name__


async def _exchange(target: Target, body: bytes, got: Got, *, stream: bool) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection(target.host, target.port)
    try:
        writer.write(post(target, "/v1/completions", body, close=True))
        got.status, headers = await read_head(reader)
        got.request_id = headers.get("x-request-id", "").removeprefix("req_")
        answer = await read_body(reader, got.status, headers)
    finally:
        writer.transport.abort()
    if got.status != 200:
        return got.status, str(json.loads(answer)["error"]["code"])
    if stream:
        if not answer.endswith(_DONE):
            return 200, "not whole"
        answer = answer.removesuffix(_DONE).rstrip().rpartition(b"data: ")[2]
    got.tokens = json.loads(answer)["usage"]["total_tokens"]
    got.is_whole = True
    return 200, ""
