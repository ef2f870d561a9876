"""Clients that hold on to a server: those that never read, and those that never finish asking.

Both run beside another tenant's probes, from addresses of their own, against a simulated engine
in real time: what is measured is the gateway. Events are made fat by a long model name, so that
the buffers between server and client are full within seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from engine.demo import MODEL_DIR
from tests.faults.cases import Target, post
from tests.live_server import Server, start_server
from tests.soak.probes import PROBERS, Probed, SchedulerView, connect, loopback_addresses, probe

CONTEXT: Final = 8192
RECEIVE_BYTES: Final = 4096
# After which the search for a bound ends: the server holds on for good.
GIVE_UP_S: Final = 120.0
_POLL_S: Final = 0.1
_TRICKLE_S: Final = 2.0


@dataclass
class SlowReaders:
    """Hold what clients that never read did to a server and to another tenant.

    `back_s` is from the last request sent to the KV blocks' being back at what the probes alone
    use, None if that never came. `peak_blocks` were in use before.
    """

    idle: Probed = field(default_factory=Probed)
    beside_readers: Probed = field(default_factory=Probed)
    beside_sleepers: Probed = field(default_factory=Probed)
    baseline_blocks: int = 0
    peak_blocks: int = 0
    back_s: float | None = None


@dataclass
class HalfOpen:
    """Hold what half-open requests did; `left` of them were still open at the end, by kind."""

    idle: Probed = field(default_factory=Probed)
    beside: Probed = field(default_factory=Probed)
    opened: int = 0
    left: dict[str, int] = field(default_factory=dict)


async def slow_readers(directory: Path, *, num_clients: int, phase_s: float) -> SlowReaders:
    """Stream to clients that read, then to as many that do not; probe beside both."""
    result = SlowReaders()
    async with (
        _served(directory, num_clients) as (server, ours, theirs),
        httpx.AsyncClient(timeout=60) as client,
    ):
        view = SchedulerView(server, client)
        probing = asyncio.create_task(probe(ours, for_s=phase_s))
        while not probing.done():
            used = (await view.counts())["used_blocks"]
            result.baseline_blocks = max(result.baseline_blocks, used)
            await asyncio.sleep(_POLL_S)
        result.idle = await probing
        # Samples may miss a moment in which all probes hold a block.
        result.baseline_blocks = max(result.baseline_blocks, PROBERS)
        async with _streams(theirs, num_clients, reading=True):
            result.beside_readers = await probe(ours, for_s=phase_s)
        await _until_blocks(view, result.baseline_blocks)
        async with _streams(theirs, num_clients, reading=False):
            probing = asyncio.create_task(probe(ours, for_s=phase_s))
            result.peak_blocks, result.back_s = await _watch_blocks(view, result.baseline_blocks)
            result.beside_sleepers = await probing
    return result


async def half_open(directory: Path, *, num_each: int, phase_s: float) -> HalfOpen:
    """Hold half headers, which trickle on, and half bodies, which do not; probe beside them."""
    result = HalfOpen()
    async with _served(directory, 0) as (_, ours, theirs):
        result.idle = await probe(ours, for_s=phase_s)
        whole = post(theirs, "/v1/completions", b"x" * 1000)
        head_bytes = whole.index(b"\r\n\r\n")
        halves = {"headers": whole[: head_bytes - 10], "bodies": whole[: head_bytes + 500]}
        sockets: dict[str, list[socket.socket]] = {}
        for kind, half in halves.items():
            sockets[kind] = [
                await connect(theirs, address) for address in loopback_addresses(num_each)
            ]
            for sock in sockets[kind]:
                await asyncio.get_running_loop().sock_sendall(sock, half)
            result.opened += num_each
        trickle = asyncio.create_task(_trickle(sockets["headers"]))
        result.beside = await probe(ours, for_s=phase_s)
        trickle.cancel()
        for kind, opened in sockets.items():
            result.left[kind] = sum(map(_is_open, opened))
            for sock in opened:
                sock.close()
    return result


@contextlib.asynccontextmanager
async def _served(
    directory: Path, num_clients: int
) -> AsyncIterator[tuple[Server, Target, Target]]:
    """Serve a simulated model of a long context; yield the probes' target and the others'."""
    model_dir = directory / "model"
    model_dir.mkdir()
    config = json.loads((MODEL_DIR / "config.json").read_text())
    config["max_position_embeddings"] = CONTEXT
    (model_dir / "config.json").write_text(json.dumps(config))
    server = await asyncio.to_thread(
        start_server,
        directory / "data",
        *("--engine", "simulated", "--model", str(model_dir), "--model-name", "m" * 1000),
        SLUICE_MAX_NUM_SEQS=str(num_clients + 64),
    )
    try:
        url = urlsplit(server.api)
        assert url.hostname is not None
        assert url.port is not None
        model = server.banner["model"]
        keys = [entry["key"] for entry in server.banner["keys"]]
        ours, theirs = (Target(url.hostname, url.port, key, model) for key in keys[:2])
        yield server, ours, theirs
    finally:
        await asyncio.to_thread(server.stop)


@contextlib.asynccontextmanager
async def _streams(target: Target, count: int, *, reading: bool) -> AsyncIterator[None]:
    """Ask for so many streams that fill the context; they end with their clients."""
    body = json.dumps(
        {
            "model": target.model,
            "prompt": [520],
            "max_tokens": CONTEXT - 64,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    sockets, readers = [], []
    loop = asyncio.get_running_loop()
    try:
        for address in loopback_addresses(count):
            sock = await connect(target, address, receive_bytes=None if reading else RECEIVE_BYTES)
            sockets.append(sock)
            await loop.sock_sendall(sock, post(target, "/v1/completions", body))
            if reading:
                readers.append(asyncio.create_task(_read_on(sock)))
        yield
    finally:
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        for sock in sockets:
            sock.close()


async def _read_on(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while await loop.sock_recv(sock, 1 << 16):
        pass


async def _until_blocks(view: SchedulerView, baseline: int) -> None:
    async with asyncio.timeout(GIVE_UP_S):
        while (await view.counts())["used_blocks"] > baseline:
            await asyncio.sleep(_POLL_S)


async def _watch_blocks(view: SchedulerView, baseline: int) -> tuple[int, float | None]:
    """Return the most blocks used, and when they were back after they had gone up."""
    started, peak = time.monotonic(), 0
    while (elapsed := time.monotonic() - started) < GIVE_UP_S:
        used = (await view.counts())["used_blocks"]
        peak = max(peak, used)
        if peak > 2 * baseline and used <= baseline:
            return peak, elapsed
        await asyncio.sleep(_POLL_S)
    return peak, None


async def _trickle(sockets: list[socket.socket]) -> None:
    """Send a byte more on every connection, slowly, so that none of them is ever idle for long."""
    while True:
        await asyncio.sleep(_TRICKLE_S)
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.send(b"x")


def _is_open(sock: socket.socket) -> bool:
    """Tell whether a server holds a connection; an answer and an end both close it."""
    try:
        while data := sock.recv(1 << 16):
            assert data
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
