"""A real HTTP server that takes what webhooks post."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address

from gateway.services.quotas.public_address import Address

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@dataclass
class Receiver:
    """Answer every post with the next of `answers`, then with 204."""

    port: int = 0
    answers: list[str] = field(default_factory=list)
    posts: list[tuple[str, dict[str, str], str]] = field(default_factory=list)

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(1)
        if first != b"P":  # not a POST in plain HTTP
            writer.close()
            return
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode()
        line, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (one.split(": ", 1) for one in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        self.posts.append((line, headers, body.decode()))
        answer = self.answers.pop(0) if self.answers else "204 No Content\r\n"
        writer.write(f"HTTP/1.1 {answer}content-length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """Take posts while the block runs."""
    receiver = Receiver()
    server = await asyncio.start_server(receiver.take, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    yield receiver
    server.close()
    await server.wait_closed()


async def here(host: str, port: int) -> Sequence[Address]:
    """Resolve every name to this machine."""
    return [ip_address("127.0.0.1")]
