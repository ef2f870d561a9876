"""Another tenant's small streams, one after the other: their time to first token and failures."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tests.faults.cases import Target, post
from tests.faults.wire import BadAnswer, NoAnswer, read_answer
from tests.live_server import Server

PROBERS: Final = 4
_PAUSE_S: Final = 0.02


@dataclass
class Probed:
    """Hold what the probes of a phase saw."""

    ttft_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


async def probe(target: Target, *, for_s: float) -> Probed:
    """Probe from a few clients at once for so many seconds."""
    result = Probed()
    end_s = time.monotonic() + for_s
    async with asyncio.TaskGroup() as group:
        for number in range(PROBERS):
            group.create_task(_probe(target, result, number, end_s))
    return result


async def _probe(target: Target, result: Probed, number: int, end_s: float) -> None:
    while time.monotonic() < end_s:
        try:
            async with asyncio.timeout(30):
                result.ttft_s.append(await _ttft_s(target, number))
        except (NoAnswer, BadAnswer, OSError, TimeoutError) as exc:
            result.failures.append(f"{type(exc).__name__}: {exc}")
        await asyncio.sleep(_PAUSE_S)


async def _ttft_s(target: Target, number: int) -> float:
    """Stream four tokens on a fresh connection; count from before the connection is made."""
    prompt = [600 + number, *range(520, 536)]
    body = {"model": target.model, "prompt": prompt, "max_tokens": 4, "stream": True}
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection(target.host, target.port)
    try:
        writer.write(post(target, "/v1/completions", json.dumps(body).encode(), close=True))
        first = await reader.readuntil(b"data: ")
        seconds = time.perf_counter() - started
        rest = asyncio.StreamReader()
        rest.feed_data(first + await reader.read(-1))
        rest.feed_eof()
        answer = await read_answer(rest)
    except asyncio.IncompleteReadError as exc:
        raise BadAnswer(f"{exc.partial[:200]!r}") from None
    finally:
        writer.transport.abort()
    if answer.status != 200 or not answer.body.endswith(b"[DONE]\n\n"):
        raise BadAnswer(f"{answer.status} {answer.body[-200:]!r}")
    return seconds


def loopback_addresses(count: int) -> Iterator[str]:
    """Name addresses of clients' own, so that no limit by address meets the probes."""
    for number in range(count):
        yield f"127.0.0.{2 + number % 8}"


async def connect(
    target: Target, address: str, *, receive_bytes: int | None = None
) -> socket.socket:
    """Connect a bare socket from an address; with a small buffer and small segments if asked."""
    sock = socket.socket()
    sock.setblocking(False)
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        # As over a network: loopback's segments of 64 KiB give the sender megabytes of buffer.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
    sock.bind((address, 0))
    await asyncio.get_running_loop().sock_connect(sock, (target.host, target.port))
    return sock


class SchedulerView:
    """Read a server's scheduler over its admin API."""

    def __init__(self, server: Server, client: httpx.AsyncClient) -> None:
        self._url = f"{server.banner['admin']}/admin/v1/scheduler"
        self._headers = {"authorization": f"Bearer {server.banner['admin_token']}"}
        self._client = client

    async def counts(self) -> dict[str, Any]:
        """Return the counts of the first model's scheduler, with `used_blocks` added."""
        answer = await self._client.get(self._url, headers=self._headers)
        counts: dict[str, Any] = answer.raise_for_status().json()["data"][0]["state"]["counts"]
        return counts | {"used_blocks": counts["total_blocks"] - counts["free_blocks"]}
