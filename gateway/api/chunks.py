"""The streamed chunks of chat and text completions, as bytes.

A stream sends the same envelope thousands of times, so it is encoded once and only the text is
encoded for each chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.api.schemas import Usage
from gateway.api.sse import event

_json = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class Envelope:
    """Hold what every chunk of an answer repeats. `created_s` is Unix time."""

    id: str
    created_s: int
    model: str
    fingerprint: str


class Chunks(Protocol):
    """Frame the events of one answer; `index` numbers the choice."""

    def opening(self, index: int) -> bytes: ...
    def text(self, index: int, text: str) -> bytes: ...
    def finish(self, index: int, reason: str) -> bytes: ...
    def usage(self, usage: Usage) -> bytes: ...


class ChatChunks:
    """Frame `chat.completion.chunk` objects."""

    def __init__(self, envelope: Envelope, *, include_usage: bool) -> None:
        head = {
            "id": envelope.id,
            "object": "chat.completion.chunk",
            "created": envelope.created_s,
            "model": envelope.model,
            "service_tier": "default",
            "system_fingerprint": envelope.fingerprint,
        }
        self._head = _json(head)[:-1]
        # Asked for usage, every chunk but the last carries it as null.
        self._tail = b',"usage":null}' if include_usage else b"}"

    def opening(self, index: int) -> bytes:
        return self._chunk(index, b'{"role":"assistant","content":"","refusal":null}', b"null")

    def text(self, index: int, text: str) -> bytes:
        return self._chunk(index, b'{"content":%b}' % _json(text), b"null")

    def finish(self, index: int, reason: str) -> bytes:
        return self._chunk(index, b"{}", _json(reason))

    def usage(self, usage: Usage) -> bytes:
        return event(b'%b,"choices":[],"usage":%b}' % (self._head, _json(usage)))

    def _chunk(self, index: int, delta: bytes, reason: bytes) -> bytes:
        return event(
            b'%b,"choices":[{"index":%d,"delta":%b,"logprobs":null,"finish_reason":%b}]%b'
            % (self._head, index, delta, reason, self._tail)
        )


class TextChunks:
    """Frame streamed `text_completion` objects."""

    def __init__(self, envelope: Envelope, *, include_usage: bool) -> None:
        head = {
            "id": envelope.id,
            "object": "text_completion",
            "created": envelope.created_s,
            "model": envelope.model,
            "system_fingerprint": envelope.fingerprint,
        }
        self._head = _json(head)[:-1]
        self._tail = b',"usage":null}' if include_usage else b"}"

    def opening(self, index: int) -> bytes:
        return b""

    def text(self, index: int, text: str) -> bytes:
        return self._chunk(index, text, b"null")

    def finish(self, index: int, reason: str) -> bytes:
        return self._chunk(index, "", _json(reason))

    def usage(self, usage: Usage) -> bytes:
        return event(b'%b,"choices":[],"usage":%b}' % (self._head, _json(usage)))

    def _chunk(self, index: int, text: str, reason: bytes) -> bytes:
        return event(
            b'%b,"choices":[{"index":%d,"text":%b,"logprobs":null,"finish_reason":%b}]%b'
            % (self._head, index, _json(text), reason, self._tail)
        )
