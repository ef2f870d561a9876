"""HTTP/1.1 answers read from a bare socket, by as little code as tells one from the next."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

_BODILESS = (204, 304)


class BadAnswer(Exception):
    """Say that what a server sent is no HTTP/1.1 answer."""


class NoAnswer(Exception):
    """Say that a server closed the connection without one byte of an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold an answer. Header names are in lower case; `closes` tells that it is the last one."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def closes(self) -> bool:
        return self.headers.get("connection", "").lower() == "close"


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read one final answer; interim ones are skipped.

    Raises: `NoAnswer`; `BadAnswer` if it is malformed or breaks off; `OSError`.
    """
    while True:
        status, headers = await read_head(reader)
        if status >= 200:
            return Answer(status, headers, await read_body(reader, status, headers))


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Read one answer's status and headers; raises as `read_answer` does."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as exc:
        if not exc.partial:
            raise NoAnswer from None
        raise BadAnswer(f"a head that breaks off: {exc.partial[:200]!r}") from None
    except asyncio.LimitOverrunError:
        raise BadAnswer("an endless head") from None
    lines = head.decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise BadAnswer(f"a status line {lines[0][:200]!r}")
    headers = {}
    for line in lines[1:-2]:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadAnswer(f"a header {line[:200]!r}")
        headers[name.lower()] = value.strip()
    return int(rest[:3]), headers


async def read_body(reader: asyncio.StreamReader, status: int, headers: dict[str, str]) -> bytes:
    """Read what follows a head; raises as `read_answer` does."""
    try:
        if status in _BODILESS:
            return b""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await _chunks(reader)
        if "content-length" in headers:
            return await reader.readexactly(int(headers["content-length"]))
    except asyncio.IncompleteReadError as exc:
        raise BadAnswer(f"a body that breaks off: {exc.partial[-200:]!r}") from None
    return await reader.read(-1)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    chunks = []
    while True:
        size = (await reader.readuntil(b"\r\n")).strip()
        try:
            num_bytes = int(size, 16)
        except ValueError:
            raise BadAnswer(f"a chunk size {size[:200]!r}") from None
        chunks.append((await reader.readexactly(num_bytes + 2))[:-2])
        if num_bytes == 0:
            return b"".join(chunks)
