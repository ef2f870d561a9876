"""The streamed chunks of chat and text completions, as bytes.

A stream sends the same envelope thousands of times, so it is encoded once and only the text is
encoded for each chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from engine.contract import TokenLogprobs
from engine.text import Tokenizer
from gateway.api.errors import error_body
from gateway.api.json_parts import encode_in_parts
from gateway.api.openai.logprobs import TextLogprobsWriter, chat_logprobs
from gateway.api.sse import DONE, event
from gateway.api.token_usage import Usage
from gateway.domain import Tier
from gateway.errors import GatewayError
from gateway.services.inference import Piece

_json = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class Envelope:
    """Hold what every chunk of an answer repeats. `created_s` is Unix time."""

    id: str
    created_s: int
    model: str
    fingerprint: str
    service_tier: Tier


# Writes how a chunk ends.
Tail = Callable[[], bytes]


def no_usage() -> bytes:
    """End a chunk."""
    return b"}"


def null_usage() -> bytes:
    """End a chunk of a stream that ends with its usage: all before have it as null."""
    return b',"usage":null}'


def running_usage(usage: Callable[[], Usage]) -> Tail:
    """End each chunk with the usage so far, as vLLM's `continuous_usage_stats`."""
    return lambda: b',"usage":%b}' % _json(usage())


class Chunks(Protocol):
    """Frame the events of one answer; `index` numbers the choice.

    An event comes in parts, as that of a long prompt's log-probabilities is large.
    """

    def opening(self, index: int) -> bytes: ...
    def piece(self, index: int, piece: Piece) -> Iterator[bytes]: ...
    def finish(self, index: int, reason: str, cause: str | None = None) -> bytes: ...
    def usage(self, usage: Usage) -> bytes: ...
    def end(self) -> bytes: ...
    def error(self, error: GatewayError, usage: Usage | None) -> bytes: ...


class DataEvents:
    """End and fail a stream as OpenAI's do."""

    def end(self) -> bytes:
        return DONE

    def error(self, error: GatewayError, usage: Usage | None) -> bytes:
        return event(error_body(error, usage))


class ChatChunks(DataEvents):
    """Frame `chat.completion.chunk` objects."""

    def __init__(
        self, envelope: Envelope, *, tail: Tail = no_usage, tokenizer: Tokenizer | None = None
    ) -> None:
        self._tokenizer = tokenizer
        head = {
            "id": envelope.id,
            "object": "chat.completion.chunk",
            "created": envelope.created_s,
            "model": envelope.model,
            "service_tier": envelope.service_tier,
            "system_fingerprint": envelope.fingerprint,
        }
        self._head = _json(head)[:-1]
        self._tail = tail

    def opening(self, index: int) -> bytes:
        return self._chunk(index, b'{"role":"assistant","content":"","refusal":null}')

    def piece(self, index: int, piece: Piece) -> Iterator[bytes]:
        if not piece.text and not piece.logprobs:
            return iter(())
        return self.framed(index, b'{"content":%b}' % _json(piece.text), piece.logprobs)

    def framed(
        self, index: int, delta: bytes, logprobs: Sequence[TokenLogprobs]
    ) -> Iterator[bytes]:
        """Frame a delta that is JSON."""
        if self._tokenizer is None or not logprobs:
            return iter((self._chunk(index, delta),))
        head = b'%b,"choices":[{"index":%d,"delta":%b' % (self._head, index, delta)
        return _scored(head, chat_logprobs(self._tokenizer, logprobs), self._tail())

    def finish(self, index: int, reason: str, cause: str | None = None) -> bytes:
        return self._chunk(index, b"{}", reason=_reason(reason, cause))

    def usage(self, usage: Usage) -> bytes:
        return _usage_chunk(self._head, usage)

    def _chunk(self, index: int, delta: bytes, reason: bytes = b"null") -> bytes:
        return event(
            b'%b,"choices":[{"index":%d,"delta":%b,"logprobs":null,"finish_reason":%b}]%b'
            % (self._head, index, delta, reason, self._tail())
        )


class TextChunks(DataEvents):
    """Frame streamed `text_completion` objects; `writers` spell logprobs, one a choice."""

    def __init__(
        self,
        envelope: Envelope,
        *,
        tail: Tail = no_usage,
        writers: Sequence[TextLogprobsWriter] = (),
    ) -> None:
        self._writers = writers
        head = {
            "id": envelope.id,
            "object": "text_completion",
            "created": envelope.created_s,
            "model": envelope.model,
            "service_tier": envelope.service_tier,
            "system_fingerprint": envelope.fingerprint,
        }
        self._head = _json(head)[:-1]
        self._tail = tail

    def opening(self, index: int) -> bytes:
        return b""

    def piece(self, index: int, piece: Piece) -> Iterator[bytes]:
        spelled = self._writers[index].write(piece) if self._writers else None
        if spelled is not None and spelled.tokens:
            text = _json(piece.text)
            head = b'%b,"choices":[{"index":%d,"text":%b' % (self._head, index, text)
            return _scored(head, spelled, self._tail())
        return iter((self._chunk(index, piece.text),) if piece.text else ())

    def finish(self, index: int, reason: str, cause: str | None = None) -> bytes:
        return self._chunk(index, "", reason=_reason(reason, cause))

    def usage(self, usage: Usage) -> bytes:
        return _usage_chunk(self._head, usage)

    def _chunk(self, index: int, text: str, reason: bytes = b"null") -> bytes:
        return event(
            b'%b,"choices":[{"index":%d,"text":%b,"logprobs":null,"finish_reason":%b}]%b'
            % (self._head, index, _json(text), reason, self._tail())
        )


def _scored(head: bytes, logprobs: msgspec.Struct, tail: bytes) -> Iterator[bytes]:
    """Frame a chunk with log-probabilities in parts; `head` ends before them."""
    yield b'data: %b,"logprobs":' % head
    yield from encode_in_parts(logprobs)
    yield b',"finish_reason":null}]%b\n\n' % tail


def _reason(reason: str, cause: str | None) -> bytes:
    """Spell why a choice ended; `cause` says what cut it short, where it was not its own bounds."""
    if cause is None:
        return _json(reason)
    return b'%b,"x_stop_cause":%b' % (_json(reason), _json(cause))


def _usage_chunk(head: bytes, usage: Usage) -> bytes:
    return event(b'%b,"choices":[],"usage":%b}' % (head, _json(usage)))
