"""A connection that redis-py has made, read where its answers come.

redis-py reads through a stream, for which a task has to be woken: each answer waits for one more
turn of the event loop, which is milliseconds beside tenants who keep it busy. So once the
connection stands (its URL, TLS, authentication and protocol are redis-py's), what comes on its
transport is handed on at once. Commands are spelled and answers parsed by hiredis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

import hiredis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import AuthenticationError, BusyLoadingError, InvalidResponse, ResponseError

# What says that nothing else on this connection will be done either.
_ENDS: Final = {"LOADING": BusyLoadingError, "NOAUTH": AuthenticationError}
_NOTHING_YET: Final = object()


class RedisWire(asyncio.Protocol):
    """Send commands and hand each answer to `on_answer`, in the order of the commands.

    A refusal of Redis is a `ResponseError` among them. `on_end` is called with what ended it,
    unless that was `close`.
    """

    def __init__(
        self,
        connection: AbstractConnection,
        on_answer: Callable[[Any], None],
        on_end: Callable[[Exception], None],
    ) -> None:
        """Take over a connection that is connected and on which nothing is under way."""
        self._connection = connection
        self._on_answer = on_answer
        self._on_end = on_end
        self._is_closed = False
        self._answers = hiredis.Reader(
            protocolError=InvalidResponse, replyError=_error, notEnoughData=_NOTHING_YET
        )
        writer = connection._writer
        assert writer is not None, "it is not connected"
        self._transport = cast(asyncio.Transport, writer.transport)
        self._transport.set_protocol(self)

    def send(self, *command: Any) -> None:
        """Send a command. Raises: `OSError`, `RuntimeError`: the transport has closed."""
        self._transport.write(hiredis.pack_command(command))

    def close(self) -> None:
        """Hand on nothing more, and let the connection go."""
        if self._is_closed:
            return
        self._is_closed = True
        task = asyncio.ensure_future(self._connection.disconnect(nowait=True))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def data_received(self, data: bytes) -> None:
        try:
            self._answers.feed(data)
            while (answer := self._answers.gets()) is not _NOTHING_YET:
                if isinstance(answer, BusyLoadingError | AuthenticationError):
                    raise answer
                if not self._is_closed:
                    self._on_answer(answer)
        except Exception as exc:
            self._end(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionResetError("the server closed the connection"))

    def _end(self, exc: Exception) -> None:
        if not self._is_closed:
            self.close()
            self._on_end(exc)


def _error(text: str) -> Exception:
    return _ENDS.get(text.partition(" ")[0], ResponseError)(text)
