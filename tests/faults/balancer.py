"""A small HTTP/1.1 balancer, as a platform puts one before replicas.

It polls `/readyz` and takes the ready servers in turn. A server that is not ready gets no new
connection; what is open there ends by itself. A request that got no byte of an answer is tried
again, elsewhere if it can be. Each request has a connection of its own on both sides, closed at
its end, so that an answer's end is the server's.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Final

from tests.faults.replica import is_ready

POLL_S: Final = 0.1
# How long a request waits for any server to be ready before it is answered with 503.
PATIENCE_S: Final = 10.0
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CONNECTION = re.compile(rb"\r\n(?:connection|keep-alive):[^\r\n]*", re.IGNORECASE)


@dataclass
class Balanced:
    """Count requests by the port that answered them, the retries, and those nobody answered."""

    answered: Counter[int] = field(default_factory=Counter)
    retries: int = 0
    unanswered: int = 0
    broken_off: int = 0


class Balancer:
    """Balance over servers on 127.0.0.1. Use as an async context manager; `port` is its own."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.balanced = Balanced()
        self.ready: set[int] = set()
        self._ports = tuple(ports)
        self._turns = count()

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Balancer:
        await self._poll()
        self._poller = asyncio.create_task(self._keep_polling())
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._poller.cancel()
        self._server.close()
        await self._server.wait_closed()

    async def _keep_polling(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            await self._poll()

    async def _poll(self) -> None:
        answers = await asyncio.gather(*(is_ready("127.0.0.1", port) for port in self._ports))
        self.ready = {port for port, ready in zip(self._ports, answers, strict=True) if ready}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _read_request(reader)
            port = None
            async with asyncio.timeout(PATIENCE_S) as patience:
                while True:
                    port = await self._choose(but=port)
                    answer = asyncio.create_task(self._try(port, request, writer, patience))
                    if await _unless_gone(answer, reader):
                        break
                    self.balanced.retries += 1
            self.balanced.answered[port] += 1
        except TimeoutError:
            self.balanced.unanswered += 1
            writer.write(b"HTTP/1.1 503 No Server\r\ncontent-length: 0\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    async def _choose(self, *, but: int | None) -> int:
        """Wait for a ready server; one that just failed only if there is no other."""
        while True:
            ready = [port for port in self._ports if port in self.ready]
            others = [port for port in ready if port != but] or ready
            if others:
                return others[next(self._turns) % len(others)]
            await asyncio.sleep(POLL_S / 4)

    async def _try(
        self, port: int, request: bytes, client: asyncio.StreamWriter, patience: asyncio.Timeout
    ) -> bool:
        """Pass a request and its answer on; False if no byte of an answer came."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            self.ready.discard(port)
            return False
        began = False
        try:
            writer.write(request)
            while data := await reader.read(1 << 16):
                began = True
                patience.reschedule(None)
                client.write(data)
                await client.drain()
            return began
        except OSError:
            if began:
                self.balanced.broken_off += 1
                client.transport.abort()
            return began
        finally:
            writer.transport.abort()


async def _unless_gone(answer: asyncio.Task[bool], client: asyncio.StreamReader) -> bool:
    """Wait for an answer; give it up when its client leaves, as a server must learn of it."""
    gone = asyncio.create_task(client.read(1))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ConnectionAbortedError
        return answer.result()
    finally:
        for task in (answer, gone):
            task.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    """Read one request with a length, and have its connection closed after the answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    body = await reader.readexactly(int(length[1])) if length else b""
    return _CONNECTION.sub(b"", head)[:-2] + b"connection: close\r\n\r\n" + body
