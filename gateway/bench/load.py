"""A client that costs little: requests as ready bytes over connections that are kept.

Each connection sends its next request when the answer to the last one is complete. Answers are
recognised by their framing alone: a content-length, or the last chunk.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from gateway.bench.subjects import BenchError, Subject

_LAST_CHUNK = b"\r\n0\r\n\r\n"


def request_of(subject: Subject, *, num_tokens: int, streams: bool) -> bytes:
    """Spell a request for so many tokens; an echo is told by a header how many events to send."""
    body = json.dumps(
        {
            "model": "sluice-demo",
            "messages": [{"role": "user", "content": "What is Sluice?"}],
            "max_tokens": num_tokens,
            "stream": streams,
        }
    ).encode()
    path = subject.stream_path if streams else subject.path
    headers: Mapping[str, str] = {
        "host": "127.0.0.1",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "x-events": str(num_tokens),
        **subject.headers,
    }
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def send_all(port: int, request: bytes, *, num_requests: int, num_connections: int) -> int:
    """Send a request again and again; returns the bytes of all answers.

    Raises: `BenchError`: an answer was no 200.
    """
    share, rest = divmod(num_requests, num_connections)
    shares = [share + (n < rest) for n in range(num_connections)]
    sizes = await asyncio.gather(*(_send(port, request, n) for n in shares))
    return sum(sizes)


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> int:
    """Send a request and read its answer; return its bytes. Raises: `BenchError`: no 200."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise BenchError(f"an answer was {head.split(bytes([13]))[0].decode()}")
    return len(head) + await _read_body(reader, head.lower())


async def _send(port: int, request: bytes, num_requests: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    size = 0
    try:
        for _ in range(num_requests):
            size += await exchange(reader, writer, request)
    finally:
        writer.close()
    return size


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> int:
    _, found, rest = head.partition(b"content-length:")
    if found:
        return len(await reader.readexactly(int(rest.split(b"\r\n")[0])))
    body = await reader.readuntil(b"0\r\n\r\n")
    size = len(body)
    while not (body == b"0\r\n\r\n" or body.endswith(_LAST_CHUNK)):
        body = await reader.readuntil(b"0\r\n\r\n")
        size += len(body)
    return size
