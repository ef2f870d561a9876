"""Write a part of an answer's body without waiting: past ASGI's calls, which may.

One snapshot a second goes to hundreds of browsers. Through `send` each costs a task that is woken,
five coroutines and a message; what is left here is to frame a chunk and hand it to the transport.
It is an extension of ASGI (`scope["extensions"][WRITE_NOW]`), so an application that knows nothing
of it loses nothing. What may not be written at once, as its client is behind, is left to `send`.
"""

from __future__ import annotations

import weakref
from typing import Final

from gateway.http.answer_cycle import AnswerCycle


class PartWriter:
    """Write parts of one answer, once its headers are sent. It keeps no request alive."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: AnswerCycle) -> None:
        # The scope holds this, and the cycle its scope: a circle, unless one of them lets go.
        self._cycle: Final = weakref.ref(cycle)

    def __call__(self, data: bytes) -> bool:
        """Write a part that is not empty and not the last. Returns whether it was written."""
        cycle = self._cycle()
        # Only once the headers are sent is it known that the answer comes in chunks.
        if cycle is None or not cycle.chunked_encoding or cycle.response_complete:
            return False
        if cycle.disconnected:
            return True
        if cycle.flow.write_paused:
            return False
        try:
            cycle.write_part(data)
        except (OSError, RuntimeError):
            # Its client has just closed: what `send` meets then is known to who waits for it.
            return False
        return True
