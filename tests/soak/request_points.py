"""Bring many requests to one point of their life, from outside, over bare sockets.

What a client sees says where a stream is; a plain request, which shows nothing before its end, is
sent together with a streaming twin and taken to be where that is. For what no client sees, the
scheduler is asked. A gateway that computes few rows and few tokens a step makes every point last
long enough to be met.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tests.faults.cases import Target, post
from tests.soak.fleet import MODEL, Fleet, until

# A long prompt takes a dozen steps, so that whole bursts are caught before their first token.
STEP_TOKENS: Final = 64
_LONG_PROMPT: Final = 800
# As many as the context has room for, behind a short prompt.
_ENDLESS: Final = 900
_READ_BYTES: Final = 1 << 16
_LINGER_NONE: Final = struct.pack("ii", 1, 0)
_REACHED_S: Final = 60.0
_STEP_S: Final = 0.02
_TOKENISED_S: Final = 0.05


class Point(StrEnum):
    """Name the points of a request's life, in their order."""

    QUEUED = "queued"
    TOKENISING = "tokenising"
    PREFILL = "prefill"
    FIRST_TOKEN = "first_token"
    MIDDLE = "middle"
    LAST_TOKEN = "last_token"
    SETTLING = "settling"
    AFTER = "after"


@dataclass
class Call:
    """Hold one request on a connection of its own and what came back."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    received: bytearray = field(default_factory=bytearray)

    @classmethod
    async def send(cls, target: Target, body: bytes) -> Call:
        call = cls(*await asyncio.open_connection(target.host, target.port))
        call.writer.write(post(target, "/v1/completions", body, close=True))
        await call.writer.drain()
        return call

    @property
    def status(self) -> int | None:
        """Return the status of the answer; None where its head has not come."""
        head = bytes(self.received[:12])
        return int(head[9:]) if len(head) == 12 else None

    async def read(self, marker: bytes | None = None, count: int = 1) -> None:
        """Read until so many markers have come, or to the end."""
        while marker is None or self.received.count(marker) < count:
            try:
                data = await self.reader.read(_READ_BYTES)
            except ConnectionError:
                return
            if not data:
                return
            self.received += data

    def leave(self, *, reset: bool = False) -> None:
        """Close the connection at once: by an RST, or by whatever the kernel sends."""
        raw: socket.socket | None = self.writer.get_extra_info("socket")
        if reset and raw is not None and not self.writer.is_closing():
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
        self.writer.transport.abort()


class Burst:
    """Send requests at once to one gateway of a fleet and bring each to `point`.

    `rows` is how many the gateway computes at a time, `size` how many are sent in all. Call
    `close` at the end.
    """

    def __init__(
        self, fleet: Fleet, point: Point, draw: random.Random, *, size: int, rows: int, at: int = 0
    ) -> None:
        assert size > rows + 1, "some must wait"
        self.point = point
        self.calls: list[Call] = []
        self._fleet = fleet
        self._draw = draw
        self._rows = rows
        self._at = at
        self._target = Target("127.0.0.1", fleet.replicas[at].port, fleet.key, MODEL)
        # Where they are to wait, others fill the rows first.
        self._num_twins = (size - rows if point is Point.QUEUED else size) // 2

    async def run(self, arrived: Callable[[Call], None]) -> None:
        """Send; call `arrived` with each request as it comes to the point."""
        base = await self._counts()
        if self.point is Point.QUEUED:
            for _ in range(self._rows):
                await self._send(stream=True, max_tokens=_ENDLESS)
            await self._until(lambda now: now["running"] >= self._rows)
        there = asyncio.create_task(self._there(base))
        try:
            async with asyncio.timeout(_REACHED_S), asyncio.TaskGroup() as group:
                for _ in range(self._num_twins):
                    twins = [await self._send(stream=stream) for stream in (True, False)]
                    group.create_task(self._bring(twins, there, arrived))
        finally:
            there.cancel()

    def close(self) -> None:
        """Leave with every request that is still there."""
        for call in self.calls:
            call.leave()

    async def _bring(
        self, twins: list[Call], there: asyncio.Task[None], arrived: Callable[[Call], None]
    ) -> None:
        stream, plain = twins
        if self.point is Point.TOKENISING:
            await asyncio.sleep(self._draw.uniform(0, _TOKENISED_S))
        elif self.point in (Point.QUEUED, Point.PREFILL):
            await asyncio.shield(there)
            await asyncio.sleep(self._draw.uniform(0, _STEP_S))
        elif self.point is Point.SETTLING:
            await asyncio.gather(
                _then(stream.read(b"data: [D"), arrived, stream),
                _then(plain.read(b"HTTP/1.1 "), arrived, plain),
            )
            return
        elif self.point is Point.AFTER:
            await asyncio.gather(stream.read(), plain.read())
        else:
            await stream.read(b"data: {", self._num_events())
            if self.point is Point.LAST_TOKEN:
                # Somewhere in the step that draws it.
                await asyncio.sleep(self._draw.uniform(0, 1.5 * _STEP_S))
        for call in twins:
            arrived(call)

    def _num_events(self) -> int:
        if self.point is Point.MIDDLE:
            # A few go on until their grant is being extended.
            far = self._draw.random() < 0.1
            return self._draw.randrange(125, 150) if far else self._draw.randrange(2, 40)
        return 1 if self.point is Point.FIRST_TOKEN else _MAX_TOKENS[Point.LAST_TOKEN] - 1

    async def _send(self, *, stream: bool, max_tokens: int | None = None) -> Call:
        body: dict[str, Any] = {
            "model": MODEL,
            "prompt": self._prompt(),
            "max_tokens": max_tokens or _MAX_TOKENS.get(self.point, 100),
            "ignore_eos": True,
            "stream": stream,
        }
        call = await Call.send(self._target, json.dumps(body).encode())
        self.calls.append(call)
        return call

    def _prompt(self) -> list[str] | list[int]:
        if self.point is Point.TOKENISING:
            # Several texts, which are tokenised one after the other.
            return [" ".join(self._draw.choices(_WORDS, k=100)) for _ in range(4)]
        size = _LONG_PROMPT if self.point is Point.PREFILL else self._draw.randrange(1, 60)
        # A beginning of its own, so that no prompt is there already.
        first = [self._draw.randrange(512, 1000) for _ in range(2)]
        return [*first, *(512 + number % 400 for number in range(size))]

    async def _there(self, base: dict[str, int]) -> None:
        """Wait until those that no client can see are where they are to be."""
        if self.point is Point.QUEUED:
            await self._until(lambda now: now["queued"] >= 2 * self._num_twins)
        elif self.point is Point.PREFILL:
            # A first token says that it is high time for the others.
            await self._until(
                lambda now: (
                    now["running"] + now["queued"] >= 2 * self._num_twins
                    or now["num_output_tokens"] > base["num_output_tokens"]
                )
            )

    async def _counts(self) -> dict[str, int]:
        view = await self._fleet.admin("GET", "/scheduler", at=self._at)
        counts: dict[str, int] = view["data"][0]["state"]["counts"]
        return counts

    async def _until(self, holds: Callable[[dict[str, int]], bool]) -> None:
        async def counted() -> bool:
            return holds(await self._counts())

        await until(counted, timeout_s=_REACHED_S, every_s=0.005)


_WORDS: Final = ("gateway", "quota", "tenant", "a", "7")
_MAX_TOKENS: Final = {
    Point.TOKENISING: 20,
    Point.PREFILL: 20,
    Point.FIRST_TOKEN: 100,
    Point.MIDDLE: 600,
    Point.LAST_TOKEN: 8,
    Point.SETTLING: 8,
    Point.AFTER: 8,
}


async def _then(reading: Any, arrived: Callable[[Call], None], call: Call) -> None:
    await reading
    arrived(call)
