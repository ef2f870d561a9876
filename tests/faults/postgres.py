"""A proxy before PostgreSQL that answers in its name: starting, full, cut off in a transaction.

It knows of the protocol what that takes: how a client greets (a request for TLS, then its startup
message), how a server refuses one (an `ErrorResponse`), and what the bytes of a statement are. What
any proxy can do (delays, a black hole, resets) is `FaultProxy`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit

from tests.faults.proxy import Fault, FaultProxy, Link

STARTING: Final = "57P03"
FULL: Final = "53300"
_MESSAGES: Final = {
    STARTING: "the database system is starting up",
    FULL: "sorry, too many clients already",
}
_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104


@dataclass(frozen=True, slots=True)
class Cut:
    """Reset the connection that sends `statement`; the server gets it where `is_passed`.

    So `Cut(b"COMMIT")` loses a transaction, and with `is_passed` only the answer to it.
    """

    statement: bytes
    is_passed: bool = False


class PostgresProxy(FaultProxy):
    """Stand before the PostgreSQL of a URL; `url` leads through here.

    While `refusal` is an SQLSTATE, every new connection gets it as its answer. `cut` holds for one
    connection, and is None once it was done. `num_refused` counts.
    """

    def __init__(self, url: str, *, fault: Fault | None = None) -> None:
        self._parts = urlsplit(url)
        options = parse_qs(self._parts.query)
        super().__init__(f"{options['host'][0]}/.s.PGSQL.5432", None, fault=fault)
        self.refusal: str | None = None
        self.num_refused = 0
        self.cut: Cut | None = None

    @property
    def url(self) -> str:
        user = quote(self._parts.username or "", safe="")
        return f"postgresql://{user}@127.0.0.1:{self.port}{self._parts.path}"

    def refuse(self, sqlstate: str) -> None:
        """Refuse whoever comes, and drop who is there, as a server does that starts again."""
        self.refusal = sqlstate
        self.reset_all()

    def relent(self) -> None:
        """Let everyone in again."""
        self.refusal = None

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if self.refusal is None:
            return True
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await _read_startup(reader, writer)
            if self.refusal is not None:
                self.num_refused += 1
                writer.write(error_response("FATAL", self.refusal))
                await writer.drain()
        writer.close()
        return False

    async def _pass(self, link: Link, data: bytes) -> bool:
        cut = self.cut
        if cut is None or cut.statement not in data:
            return True
        self.cut = None
        if cut.is_passed:
            link.tasks[1].cancel()
            await asyncio.wait([link.tasks[1]])
            link.server.write(data)
            # The answer, which nobody gets, shows that the server has done it.
            await link.server_reader.read(1)
        self._reset(link)
        return False


def error_response(severity: str, sqlstate: str) -> bytes:
    """Encode what a server says when it fails."""
    message = _MESSAGES.get(sqlstate, "refused by the proxy")
    fields = {"S": severity, "V": severity, "C": sqlstate, "M": message}
    body = b"".join(b"%b%b\0" % (kind.encode(), text.encode()) for kind, text in fields.items())
    return b"E" + struct.pack("!i", len(body) + 5) + body + b"\0"


async def _read_startup(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read to the end of the startup message, and decline what may come before it."""
    while True:
        size, code = struct.unpack("!ii", await reader.readexactly(8))
        await reader.readexactly(size - 8)
        if code not in (_SSL_REQUEST, _GSS_REQUEST):
            return
        writer.write(b"N")
        await writer.drain()
