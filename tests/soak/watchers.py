"""Two hundred browsers that follow the live stream, beside tenants whose tokens are streamed.

Slices with watchers and without take turns, so that both meet the same machine. The engine's steps
are simulated: what is measured is the gateway's event loop, which tokens and snapshots share.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from tests.live_server import Server
from tests.soak.pages_at_scale import Browser, cpu_s

_STREAMS: Final = 8
_TOKENS: Final = 200


@dataclass
class Watched:
    """Hold gaps between the events of streams, in seconds, and what idle slices cost the server."""

    watchers: int
    snapshots: int = 0
    alone_s: list[float] = field(default_factory=list)
    beside_s: list[float] = field(default_factory=list)
    # Of a core, with nobody streaming: without watchers, and with them.
    idle_share: list[float] = field(default_factory=list)
    watched_share: list[float] = field(default_factory=list)


async def watch_beside_streams(
    server: Server, browser: Browser, *, watchers: int, rounds: int, slice_s: float
) -> Watched:
    """Measure in turns: idle, watched, streams alone, streams beside watchers."""
    result = Watched(watchers)
    # What the first requests cost is none of anybody's.
    await _streams(server, 2.0)
    for _ in range(rounds):
        result.idle_share.append(await _share(server, slice_s))
        result.alone_s += await _streams(server, slice_s)
        async with _watching(server, browser, result):
            result.watched_share.append(await _share(server, slice_s))
            result.beside_s += await _streams(server, slice_s)
    return result


async def _share(server: Server, slice_s: float) -> float:
    """Return which part of a core the server takes while nothing is asked of it."""
    pid = server.process.pid
    began_s, before_s = time.monotonic(), cpu_s(pid)
    await asyncio.sleep(slice_s)
    return (cpu_s(pid) - before_s) / (time.monotonic() - began_s)


@asynccontextmanager
async def _watching(server: Server, browser: Browser, result: Watched) -> AsyncIterator[None]:
    """Have all of them connected, and reading, while the block runs."""
    place = urlsplit(str(server.banner["admin"]))
    head = (
        f"GET /admin/live HTTP/1.1\r\nhost: {place.netloc}\r\ncookie: {browser.cookie}\r\n"
        "accept: text/event-stream\r\n\r\n"
    )
    started: asyncio.Queue[None] = asyncio.Queue()

    async def watch() -> None:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            writer.write(head.encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in answer[:16], answer
            await reader.readuntil(b"data: ")
            started.put_nowait(None)
            while chunk := await reader.read(1 << 16):
                result.snapshots += chunk.count(b"data: ")
        finally:
            writer.close()

    tasks = [asyncio.create_task(watch()) for _ in range(result.watchers)]
    try:
        async with asyncio.timeout(60):
            for _ in tasks:
                await started.get()
        yield
        assert not any(task.done() for task in tasks), "a watcher was let go"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _streams(server: Server, slice_s: float) -> list[float]:
    """Stream from some clients, one request after the other; return the gaps between events."""
    place = urlsplit(server.api)
    prompt = "What is Sluice?"
    asked = {"model": server.banner["model"], "prompt": prompt, "max_tokens": _TOKENS}
    body = json.dumps(asked | {"stream": True, "ignore_eos": True}).encode()
    head = (
        f"POST {place.path}/completions HTTP/1.1\r\nhost: {place.netloc}\r\n"
        f"authorization: Bearer {server.key}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    gaps_s: list[float] = []
    end_s = time.monotonic() + slice_s

    async def stream() -> None:
        while time.monotonic() < end_s:
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            try:
                writer.write(head.encode() + body)
                answer = await reader.readuntil(b"\r\n\r\n")
                assert b" 200 " in answer[:16], answer
                last_s = None
                while chunk := await reader.read(1 << 16):
                    now_s = time.perf_counter()
                    if b"data: " not in chunk:
                        continue
                    if last_s is not None:
                        gaps_s.append(now_s - last_s)
                    last_s = now_s
            finally:
                writer.close()

    await asyncio.gather(*(stream() for _ in range(_STREAMS)))
    return gaps_s
