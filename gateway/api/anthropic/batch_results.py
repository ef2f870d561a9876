"""The results of a batch of messages as JSONL, made of its files as they are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, Final, Literal

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.errors import messages_error
from gateway.domain.batch import Batch, BatchState
from gateway.errors import InvalidRequest
from gateway.services import loop_share
from gateway.services.batches.message_batches import MessageBatches, WriteLine, never_ran

# As of a file: a download that is slower than this is not read to its end.
_SEND_S: Final = 60.0
_BYTES_A_REQUEST: Final = 4 << 10
_SLOWEST_BYTES_PER_S: Final = 16 << 10
_HEADERS: Final = [
    (b"content-type", b"application/x-jsonl"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Answered(msgspec.Struct):
    status_code: int
    body: msgspec.Raw


class _Dropped(msgspec.Struct):
    code: str


class _Line(msgspec.Struct):
    """Read a line of an output or error file, or of an input, of which the id alone is wanted."""

    custom_id: str
    response: _Answered | None = None
    error: _Dropped | None = None


class MessageResult(msgspec.Struct, omit_defaults=True):
    type: str
    message: Any = None
    error: Any = None


class MessageBatchResult(msgspec.Struct):
    """Spell the result of one request."""

    custom_id: str
    result: MessageResult


_lines: Final = msgspec.json.Decoder(_Line)
_FATES: Final[dict[BatchState, Literal["expired", "canceled"]]] = {
    BatchState.EXPIRED: "expired",
    BatchState.CANCELLED: "canceled",
}


def writer(batch: Batch) -> WriteLine:
    """Return what writes a result of a line of one of a batch's files."""
    state = never_ran(batch)
    if state is None:
        return _result
    fate = _FATES.get(state)
    if fate is not None:
        return lambda line: _as(line, MessageResult(fate))
    text = batch.errors[0].message if batch.errors else "The batch could not be started."
    error = messages_error(InvalidRequest(text), batch.id.hex)
    return lambda line: _as(line, MessageResult("errored", error=error))


def _result(line: bytes) -> bytes | None:
    read = _lines.decode(line)
    if read.response is None:
        is_expired = read.error is not None and read.error.code == "batch_expired"
        result = MessageResult("expired" if is_expired else "canceled")
    elif read.response.status_code == 200:
        result = MessageResult("succeeded", message=read.response.body)
    else:
        result = MessageResult("errored", error=read.response.body)
    return msgspec.json.encode(MessageBatchResult(read.custom_id, result)) + b"\n"


def _as(line: bytes, result: MessageResult) -> bytes | None:
    try:
        read = _lines.decode(line)
    except _UNREADABLE:
        # The line for which the batch was never started.
        return None
    return msgspec.json.encode(MessageBatchResult(read.custom_id, result)) + b"\n"


class BatchResults(Response):
    """Send the results of a batch that has ended."""

    def __init__(self, batches: MessageBatches, batch: Batch) -> None:
        self._batches = batches
        self._batch = batch
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        batch = self._batch
        limit_s = _SEND_S + batch.num_items * _BYTES_A_REQUEST / _SLOWEST_BYTES_PER_S
        async with aclosing(self._batches.results(batch, writer(batch))) as parts:
            # Asked for before the head is sent: results that are gone are still a 404.
            first = await anext(parts, b"")
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            # One that is given up has no end, so that nobody takes it for whole.
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await _send_all(first, parts, send)


async def _send_all(first: bytes, parts: AsyncGenerator[bytes, None], send: Send) -> None:
    await send({"type": "http.response.body", "body": first, "more_body": True})
    async for part in parts:
        await loop_share.turn()
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
