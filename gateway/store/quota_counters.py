"""The counters of limits in Redis: one function does everything (`quota/*.lua`)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import Final

from redis.exceptions import RedisError, ResponseError

from gateway.domain.counters import CounterReply, Op
from gateway.errors import CountersUnavailable
from gateway.store.quota_codec import decode, encode
from gateway.store.redis_pipe import PipeClosed, RedisPipe

# So long, after the first attempt, a request waits for its limits before it is refused or served
# without them: both come to less than the half second that a store out of reach may add.
PATIENCE_S: Final = 0.4
_PARTS: Final = ("scopes", "requests", "upkeep")
SCRIPT: Final = "\n".join(
    resources.files("gateway.store").joinpath("quota", f"{part}.lua").read_text() for part in _PARTS
)


@dataclass(frozen=True, slots=True)
class Library:
    """Hold the function's name and source.

    It is named after what it holds: two releases that share a server each call their own.
    """

    name: str
    source: str

    @classmethod
    def of(cls, script: str) -> Library:
        name = f"sluice_{hashlib.sha256(script.encode()).hexdigest()[:16]}"
        return cls(name, f"#!lua name={name}\nlocal LIBRARY = '{name}'\n{script}")


_LIBRARY: Final = Library.of(SCRIPT)


class RedisQuotaCounters:
    """Implement `QuotaCounters`.

    A call that failed is sent once more, as each operation is safe to repeat: where the first was
    done and its answer lost, the second finds it done. It waits longer: on a machine that is busy
    Redis itself may not run for a while, which is no reason to refuse a request.
    """

    def __init__(self, pipe: RedisPipe, *, patience_s: float = PATIENCE_S) -> None:
        self._pipe = pipe
        self._patience_s = patience_s
        self._again: set[asyncio.Future[CounterReply]] = set()

    async def run(self, ops: Sequence[Op]) -> CounterReply:
        arguments = encode(ops)
        try:
            answer = await self._call(arguments)
        except PipeClosed:
            return await self._run_again(ops, arguments)
        except (RedisError, OSError) as exc:
            raise _unavailable(exc) from exc
        return decode(ops, answer)

    def begin(
        self, ops: Sequence[Op], on_reply: Callable[[CounterReply | Exception], None]
    ) -> bool:
        arguments = encode(ops)

        def on_answer(answer: bytes | Exception) -> None:
            if isinstance(answer, bytes):
                try:
                    reply = decode(ops, answer)
                except Exception as exc:
                    on_reply(exc)
                else:
                    on_reply(reply)
                return
            task = asyncio.ensure_future(self._run_again(ops, arguments))
            self._again.add(task)
            task.add_done_callback(self._again.discard)
            task.add_done_callback(lambda task: on_reply(_outcome(task)))

        return self._pipe.begin(on_answer, "FCALL", _LIBRARY.name, 0, *arguments)

    async def _run_again(self, ops: Sequence[Op], arguments: Sequence[bytes]) -> CounterReply:
        try:
            answer = await self._call(arguments, patience_s=self._patience_s)
        except (PipeClosed, RedisError, OSError) as exc:
            raise _unavailable(exc) from exc
        return decode(ops, answer)

    async def _call(self, arguments: Sequence[bytes], *, patience_s: float | None = None) -> bytes:
        call = partial(self._pipe.call, patience_s=patience_s)
        try:
            answer: bytes = await call("FCALL", _LIBRARY.name, 0, *arguments)
        except ResponseError as exc:
            if "Function not found" not in str(exc):
                raise
            await call("FUNCTION", "LOAD", "REPLACE", _LIBRARY.source)
            answer = await call("FCALL", _LIBRARY.name, 0, *arguments)
        return answer


def _unavailable(exc: Exception) -> CountersUnavailable:
    return CountersUnavailable(detail=str(exc), retry_after_s=1)


def _outcome(done: asyncio.Future[CounterReply]) -> CounterReply | Exception:
    if done.cancelled():
        return _unavailable(PipeClosed("closed"))
    exc = done.exception()
    # What is no error of ours ends the loop itself.
    assert exc is None or isinstance(exc, Exception)
    return done.result() if exc is None else exc
