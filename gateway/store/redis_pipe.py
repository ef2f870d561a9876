"""One connection to Redis on which calls follow each other without waiting for answers.

What redis-py keeps well is used of it: the URL, TLS, authentication and the protocol. Its client is
left out, because a pool, a retry and a lock for each call cost more than the call, and so are its
streams (`redis_wire`).

A call is given up after a short time. If the event loop itself was late, the answer may be in the
socket already, so a timer that fires late looks once more. A connection that did not answer is
dropped, as answers come in order: what was sent on it may or may not have been done, so only what
can be repeated may be sent here.

A connection that ended is made again for the next call. After one that could not be made, or on
which nothing was answered, calls fail at once for a moment: a server that is gone costs each of
them nothing. A call with patience waits longer, also for a connection; while one waits on it, a
connection is not dropped for those that have none.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from gateway.store.redis_wire import RedisWire

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S: Final = 1.0
_RECONNECT_S: Final = 0.1
# A timer that is later than this was held up by the loop, not by Redis.
_LATE_S: Final = 0.01
# What sending and connecting may raise; uvloop has a word of its own for a transport that closed.
_FAILURES: Final = (RedisError, OSError, RuntimeError)
# In so many the loop has read what is in the socket.
_TURNS: Final = 3


class _Told:
    """Stand for a future of which one is told at once, and not in another turn of the loop."""

    __slots__ = ("_on_answer", "_timer")

    def __init__(self, on_answer: Callable[[Any], None]) -> None:
        self._on_answer = on_answer
        self._timer: asyncio.TimerHandle | None = None

    def give_up_with(self, timer: asyncio.TimerHandle) -> None:
        self._timer = timer

    def done(self) -> bool:
        return self._timer is None

    def set_result(self, value: Any) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._timer = None
        self._on_answer(value)

    set_exception = set_result

    def exception(self) -> None:
        """Have nothing to be retrieved."""


Answer = asyncio.Future[Any] | _Told


class PipeClosed(Exception):
    """The connection is down, or went down before the answer came."""


class RedisPipe:
    """Call Redis over one connection; it is made, and made again, in the background.

    The client must have no `socket_timeout`: an idle connection waits for ever.
    """

    def __init__(self, redis: Redis, *, timeout_s: float) -> None:
        self._pool = redis.connection_pool
        self._timeout_s = timeout_s
        self._wire: RedisWire | None = None
        self._waiting: deque[Answer] = deque()
        # When the most patient of those that wait on the connection gives up.
        self._patient_until_s = float("-inf")
        self._connecting: asyncio.Task[None] | None = None
        self._closed = False
        self._failed_s = float("-inf")

    async def call(self, *command: str | bytes | int, patience_s: float | None = None) -> Any:
        """Send a command and wait for its answer, for the time limit or `patience_s` at most.

        Raises: `PipeClosed`: down, or no answer in time; `ResponseError`.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + (patience_s or self._timeout_s)
        wire = self._wire
        if wire is None:
            wire = await self._connected(deadline_s, is_patient=patience_s is not None)
        if patience_s is not None:
            self._patient_until_s = max(self._patient_until_s, deadline_s)
        answer: asyncio.Future[Any] = loop.create_future()
        drops = patience_s is not None
        timer = loop.call_at(deadline_s, self._check, answer, deadline_s, drops)
        self._send(wire, answer, command)
        try:
            return await answer
        finally:
            timer.cancel()

    def begin(self, on_answer: Callable[[Any], None], *command: str | bytes | int) -> bool:
        """Send a command as `call` does; `on_answer` gets what that would return or raise.

        It is called where the answer is read, and may not raise.
        Returns: False, and nothing is sent, where there is no connection now.
        """
        wire = self._wire
        if wire is None:
            return False
        loop = asyncio.get_running_loop()
        answer, deadline_s = _Told(on_answer), loop.time() + self._timeout_s
        answer.give_up_with(loop.call_at(deadline_s, self._check, answer, deadline_s, False))
        self._send(wire, answer, command)
        return True

    def _send(self, wire: RedisWire, answer: Answer, command: Sequence[str | bytes | int]) -> None:
        self._waiting.append(answer)
        try:
            wire.send(*command)
        except _FAILURES as exc:
            self._drop(exc)

    async def close(self) -> None:
        """Close the connection; nothing can be called afterwards."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        self._drop(None)

    async def _connected(self, deadline_s: float, *, is_patient: bool) -> RedisWire:
        """Wait for a connection that is being made, for as long as a call may take."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise PipeClosed("closed")
        if self._connecting is None:
            if not is_patient and loop.time() - self._failed_s < _RECONNECT_S:
                raise PipeClosed("not connected")
            self._connecting = loop.create_task(self._connect())
        await asyncio.wait([self._connecting], timeout=max(deadline_s - loop.time(), 0.001))
        if self._wire is None:
            raise PipeClosed("not connected")
        return self._wire

    async def _connect(self) -> None:
        connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await connection.connect()  # type: ignore[no-untyped-call]
        except _FAILURES as exc:
            self._failed_s = asyncio.get_running_loop().time()
            logger.debug("no connection to Redis: %s", exc)
            await connection.disconnect(nowait=True)
        else:
            self._wire = RedisWire(connection, self._answered, self._drop)
        finally:
            self._connecting = None

    def _answered(self, value: Any) -> None:
        """Hand an answer to who waited for it, the first of all. Raises: `IndexError`: nobody."""
        answer = self._waiting.popleft()
        if answer.done():
            return
        if isinstance(value, Exception):
            answer.set_exception(value)
        else:
            answer.set_result(value)

    def _check(self, answer: Answer, deadline_s: float, drops: bool) -> None:
        """Give an answer up whose time has passed, unless it was the loop that was late.

        With `drops` the connection goes with it, whoever else waits.
        """
        if answer.done():
            return
        loop = asyncio.get_running_loop()
        if loop.time() - deadline_s > _LATE_S:
            again_s = loop.time() + _LATE_S
            loop.call_at(again_s, self._check, answer, again_s, drops)
            return
        self._give_up(answer, drops, _TURNS)

    def _give_up(self, answer: Answer, drops: bool, num_turns: int) -> None:
        """Give an answer up, unless the loop finds it in its next turns."""
        if answer.done():
            return
        loop = asyncio.get_running_loop()
        if num_turns:
            loop.call_soon(self._give_up, answer, drops, num_turns - 1)
            return
        now_s = loop.time()
        error = TimeoutError(f"no answer within {self._timeout_s:g} s")
        if not drops and now_s < self._patient_until_s:
            # Its place in the queue stays, as its answer may still come.
            answer.set_exception(PipeClosed(str(error)))
            return
        self._failed_s = now_s
        self._drop(error)

    def _drop(self, error: BaseException | None) -> None:
        """End the connection, and with it every call that waits."""
        wire, self._wire = self._wire, None
        waiting, self._waiting = self._waiting, deque()
        self._patient_until_s = float("-inf")
        for answer in waiting:
            if not answer.done():
                answer.set_exception(PipeClosed(str(error or "closed")))
                answer.exception()  # retrieved: who waited may be gone
        if wire is not None:
            wire.close()
