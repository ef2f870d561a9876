"""Reading connections in small pieces, so that no burst of them holds the event loop.

An event loop reads what many connections have sent in one go, before anything else gets its turn,
and left to itself uvloop takes 256 KiB of each: into memory that is fresh from the kernel, which
costs more than the copy. Here it reads into one buffer that all connections of a server share, and
whoever is handed a piece has it copied out before the next connection is read. Pieces for which a
turn of the loop has no room are handed over later, and their connections not read meanwhile.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from gateway.http.fair_turns import FairTurns
from gateway.http.limits import Place

# As much of a connection as is read at a time.
READ_BYTES: Final = 64 << 10


class SmallReads(asyncio.BufferedProtocol):
    """Hand `protocol` what comes to its `place`, in pieces as long as the shared `buffer`."""

    def __init__(
        self, protocol: asyncio.Protocol, buffer: memoryview, turns: FairTurns, place: Place
    ) -> None:
        self.transport: Any = None
        self._protocol = protocol
        self._buffer = buffer
        self._turns = turns
        self._place = place
        self._num_waiting = 0
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._protocol.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        piece = bytes(self._buffer[:nbytes])
        # Behind what waits already, should its reader have it read on.
        if not self._num_waiting and self._turns.take():
            self._protocol.data_received(piece)
        else:
            self._num_waiting += 1
            self.transport.pause_reading()
            self._turns.later(self._place.address, partial(self._go_on, piece))

    def _go_on(self, piece: bytes) -> None:
        """Hand a piece over that has waited, and read on unless that is told otherwise."""
        self._num_waiting -= 1
        if self._is_lost or self.transport.is_closing():
            return
        self.transport.resume_reading()
        self._protocol.data_received(piece)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        # Another may come at once; all that its requests hold is let go of by turns.
        self._place.leave()
        self._turns.do(self._place.address, partial(self._protocol.connection_lost, exc))

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()
