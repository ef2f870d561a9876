"""A TCP proxy that misbehaves on request, between a client and a server.

The fault can be changed at any time and holds from the next bytes on, for connections that are
open too; faults of one direction are the server's (what the client reads). Where each connection
is to have a fault of its own, `choose` says which, once, and that one stays. Waiting is done in
`asyncio.sleep`, and jitter is drawn from a seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final
from urllib.parse import urlsplit

_READ_BYTES: Final = 1 << 14
_POLL_S: Final = 0.01
_LINGER_NONE: Final = struct.pack("ii", 1, 0)
# uvloop has its own word for a transport that was closed.
_CLOSED: Final = (OSError, RuntimeError)


@dataclass(frozen=True, slots=True)
class Fault:
    """Say how the proxy misbehaves; the default forwards faithfully.

    `latency_s` ± `jitter_s` delay every read in both directions. `bytes_per_s` throttles the
    server's bytes. `blackhole` accepts and forwards nothing, either way. `cut_after_bytes` ends
    a connection once so many bytes of its reply were passed on: with a FIN, or with an RST where
    `reset` is set. `reset` alone resets connections as soon as they are open. `half_close` ends
    the client's reading side and goes on taking its bytes.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float | None = None
    blackhole: bool = False
    cut_after_bytes: int | None = None
    reset: bool = False
    half_close: bool = False


@dataclass
class Counts:
    """Count what a proxy did."""

    accepted: int = 0
    refused: int = 0
    resets: int = 0
    cuts: int = 0
    half_closes: int = 0
    delays: int = 0
    bytes_to_server: int = 0
    bytes_to_client: int = 0


@dataclass(eq=False)
class Link:
    """Hold the two sides of one connection and what of the reply was passed on."""

    client_reader: asyncio.StreamReader
    client: asyncio.StreamWriter
    server_reader: asyncio.StreamReader
    server: asyncio.StreamWriter
    chosen: Fault | None = None
    replied_bytes: int = 0
    half_closed: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class FaultProxy:
    """Forward TCP from a port of its own to a server, through the present `fault`.

    Use as an async context manager; `port` is known inside. Set `fault` to change it. `choose` is
    called for each connection; where it returns a fault, the connection has that one instead.
    Without a port, `host` is the path of a Unix socket.
    """

    def __init__(
        self,
        host: str,
        port: int | None,
        *,
        fault: Fault | None = None,
        choose: Callable[[], Fault | None] = lambda: None,
        seed: int = 0,
    ) -> None:
        self.fault = fault or Fault()
        self.counts = Counts()
        self._target = (host, port)
        self._choose = choose
        self._draw = random.Random(seed)
        self._links: set[Link] = set()

    @property
    def port(self) -> int:
        return int(self._bound.getsockname()[1])

    def redis_url(self, url: str) -> str:
        """Return the URL through here of the Redis behind it, with its password."""
        return f"redis://{urlsplit(url).netloc.rpartition('@')[0]}@127.0.0.1:{self.port}"

    @property
    def num_open(self) -> int:
        """Return how many connections are open."""
        return len(self._links)

    async def __aenter__(self) -> FaultProxy:
        self._bound = _bound_socket()
        await self.listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        tasks = [task for link in self._links for task in link.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._bound.close()

    async def listen(self) -> None:
        """Take connections, as it does from the start."""
        self._is_deaf = False
        self._server = await asyncio.start_server(self._accept, sock=self._bound.dup())

    async def deafen(self) -> None:
        """Reset who is there, and have the system refuse who comes, until `listen`."""
        self._is_deaf = True
        self._server.close()
        # What was closed is seen to have been before what listened behind it is gone.
        await asyncio.sleep(0)
        self._bound.shutdown(socket.SHUT_RDWR)
        self.reset_all()

    def reset_all(self) -> None:
        """Reset every open connection on both sides."""
        for link in tuple(self._links):
            self._reset(link)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts.accepted += 1
        if not await self._greet(reader, writer):
            return
        try:
            server_reader, server = await self._open()
        except OSError:
            self.counts.refused += 1
            writer.transport.abort()
            return
        if self._is_deaf:
            # It came before, and is only now one of those who are there.
            self.counts.resets += 1
            _abort((writer, server))
            return
        link = Link(reader, writer, server_reader, server, self._choose())
        link.tasks = [
            asyncio.create_task(self._to_server(link)),
            asyncio.create_task(self._to_client(link)),
            asyncio.create_task(self._watch(link)),
        ]
        self._links.add(link)
        try:
            await asyncio.wait(link.tasks[:2])
        finally:
            link.tasks[2].cancel()
            self._links.discard(link)
            _abort((link.client, link.server))

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Meet a client before its server is asked; False where that was all that it gets."""
        return True

    async def _pass(self, link: Link, data: bytes) -> bool:
        """See what a client sends; False where it ends here, the connection too."""
        return True

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._target
        if port is None:
            return await asyncio.open_unix_connection(host)
        return await asyncio.open_connection(host, port)

    async def _to_server(self, link: Link) -> None:
        with contextlib.suppress(*_CLOSED):
            while data := await link.client_reader.read(_READ_BYTES):
                await self._hold(link)
                if not await self._pass(link, data):
                    return
                self.counts.bytes_to_server += len(data)
                link.server.write(data)
                await link.server.drain()
            await self._hold(link)
            link.server.write_eof()

    async def _to_client(self, link: Link) -> None:
        with contextlib.suppress(*_CLOSED):
            while data := await link.server_reader.read(_READ_BYTES):
                await self._hold(link)
                if not link.half_closed:
                    await self._reply(link, data)
            await self._hold(link)
            link.client.write_eof()

    async def _reply(self, link: Link, data: bytes) -> None:
        """Pass on what the fault lets through, in pieces where it is throttled."""
        while data:
            fault = self._fault_of(link)
            cut, rate = fault.cut_after_bytes, fault.bytes_per_s
            # A tenth of a second's worth at a time, so that a changed rate holds soon.
            size = len(data) if rate is None else max(1, int(rate / 10))
            if cut is not None:
                size = min(size, cut - link.replied_bytes)
            piece, data = data[: max(0, size)], data[max(0, size) :]
            if piece:
                link.client.write(piece)
                await link.client.drain()
                link.replied_bytes += len(piece)
                self.counts.bytes_to_client += len(piece)
            if cut is not None and link.replied_bytes >= cut:
                self._cut(link)
                return
            if rate is not None:
                await asyncio.sleep(len(piece) / rate)

    def _fault_of(self, link: Link) -> Fault:
        return link.chosen or self.fault

    async def _hold(self, link: Link) -> None:
        """Wait as long as the fault says; a blackhole until it is lifted."""
        fault = self._fault_of(link)
        if fault.latency_s or fault.jitter_s:
            self.counts.delays += 1
            delay_s = fault.latency_s + self._draw.uniform(-fault.jitter_s, fault.jitter_s)
            await asyncio.sleep(max(0.0, delay_s))
        while self._fault_of(link).blackhole:
            await asyncio.sleep(_POLL_S)

    async def _watch(self, link: Link) -> None:
        """Do what no byte has to come for."""
        while True:
            fault = self._fault_of(link)
            if fault.reset and fault.cut_after_bytes is None:
                self._reset(link)
                return
            if fault.half_close and not link.half_closed:
                link.half_closed = True
                self.counts.half_closes += 1
                link.client.write_eof()
            await asyncio.sleep(_POLL_S)

    def _cut(self, link: Link) -> None:
        self.counts.cuts += 1
        if self._fault_of(link).reset:
            self._reset(link)
        else:
            link.client.close()
            link.server.transport.abort()

    def _reset(self, link: Link) -> None:
        self.counts.resets += 1
        _abort((link.client, link.server))


def _bound_socket() -> socket.socket:
    """Bind a socket to a port that stays ours while nobody listens on it.

    Linux takes back one that it chose itself as soon as nobody does.
    """
    with socket.socket() as chosen:
        chosen.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        chosen.bind(("127.0.0.1", 0))
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(chosen.getsockname())
    return bound


def _abort(writers: Iterable[asyncio.StreamWriter]) -> None:
    """Close with an RST: what is unsent is dropped, and the peer's read fails."""
    for writer in writers:
        raw: socket.socket | None = writer.get_extra_info("socket")
        if raw is not None and not writer.is_closing():
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
        writer.transport.abort()
