"""Requests that come at a steady rate whatever becomes of them, and what each was answered.

The load is open: a gateway that hangs gets as many requests as one that answers. Every request has
a connection of its own, so a fault is met by who it happens to.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from tests.faults.cases import Target, post
from tests.faults.wire import Answer, BadAnswer, NoAnswer, read_answer
from tests.soak.fleet import MODEL

_GIVE_UP_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Caller:
    """Name who asks, by which key, and for what; one that streams asks for a stream in `body`."""

    name: str
    key: str
    body: bytes
    streams: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """Say what one request was answered; a `status` of 0 is a connection that died.

    `code` is that of an error, or of what went wrong. `is_whole` tells that an answer of 200 came
    to its end. Times are the loop's.
    """

    caller: str
    gateway: int
    sent_s: float
    took_s: float
    status: int
    code: str = ""
    request_id: str = ""
    is_whole: bool = False
    is_degraded: bool = False
    may_retry: bool = False
    stop_cause: str = ""

    @property
    def answered_s(self) -> float:
        return self.sent_s + self.took_s


class SteadyLoad:
    """Ask gateways in turn, on behalf of callers in turn; `open` lists those that are asked."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.asked: list[Asked] = []
        self.open = list(range(len(ports)))
        self._ports = list(ports)

    def of(self, *callers: str, since_s: float = 0.0, until_s: float = 1e18) -> Iterator[Asked]:
        """Go through what callers sent between two times."""
        for one in self.asked:
            if one.caller in callers and since_s <= one.sent_s < until_s:
                yield one

    @asynccontextmanager
    async def running(
        self, callers: Sequence[Caller], *, rate: float, streams: Sequence[Caller] = ()
    ) -> AsyncIterator[None]:
        """Ask `rate` times a second in all, and keep each of `streams` going, during the block.

        On leaving, wait for the last answers.
        """
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._at_rate(group, callers, rate, over))
            for number, caller in enumerate(streams):
                group.create_task(self._again_and_again(caller, number, over))
            try:
                yield
            finally:
                over.set()

    async def ask(self, caller: Caller, gateway: int) -> Asked:
        """Ask once and note it."""
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        target = Target("127.0.0.1", self._ports[gateway], caller.key, MODEL)
        try:
            answer = await _exchange(target, caller.body)
        except (NoAnswer, BadAnswer, OSError, TimeoutError) as exc:
            asked = Asked(caller.name, gateway, sent_s, loop.time() - sent_s, 0, type(exc).__name__)
        else:
            asked = _read(caller, gateway, sent_s, loop.time() - sent_s, answer)
        self.asked.append(asked)
        return asked

    async def _at_rate(
        self,
        group: asyncio.TaskGroup,
        callers: Sequence[Caller],
        rate: float,
        over: asyncio.Event,
    ) -> None:
        loop = asyncio.get_running_loop()
        began_s, number = loop.time(), 0
        while not over.is_set():
            caller = callers[number % len(callers)]
            gateway = self.open[number // len(callers) % len(self.open)]
            group.create_task(self.ask(caller, gateway))
            number += 1
            await asyncio.sleep(max(began_s + number / rate - loop.time(), 0))

    async def _again_and_again(self, caller: Caller, number: int, over: asyncio.Event) -> None:
        while not over.is_set():
            asked = await self.ask(caller, self.open[number % len(self.open)])
            if asked.status != 200:
                await asyncio.sleep(0.2)


async def _exchange(target: Target, body: bytes) -> Answer:
    async with asyncio.timeout(_GIVE_UP_S):
        reader, writer = await asyncio.open_connection(target.host, target.port)
        try:
            writer.write(post(target, "/v1/completions", body, close=True))
            return await read_answer(reader)
        finally:
            writer.transport.abort()


def _read(caller: Caller, gateway: int, sent_s: float, took_s: float, answer: Answer) -> Asked:
    headers, code, cause, is_whole = answer.headers, "", "", False
    if answer.status != 200:
        code = json.loads(answer.body)["error"]["code"] or ""
    elif caller.streams:
        is_whole = answer.body.endswith(b"data: [DONE]\n\n")
        cause = "quota" if b'"x_stop_cause":"quota"' in answer.body else ""
        if not is_whole:
            code = answer.body.rstrip().rpartition(b"\n\n")[2].decode(errors="replace")[:300]
    else:
        choice = json.loads(answer.body)["choices"][0]
        is_whole, cause = True, choice.get("x_stop_cause", "")
    return Asked(
        caller.name,
        gateway,
        sent_s,
        took_s,
        answer.status,
        code,
        headers["x-request-id"].removeprefix("req_"),
        is_whole,
        headers.get("x-sluice-degraded") == "quota",
        "retry-after" in headers and "retry-after-ms" in headers,
        cause,
    )
