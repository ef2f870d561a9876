"""Streamed chunks of a chat whose answer is read for thinking and for calls.

One chunk an event. Log-probabilities are those of all tokens, whatever became of them: they come
with the first chunk after they were drawn, which may say nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from engine.text import Tokenizer
from gateway.api.openai.chunks import ChatChunks, DataEvents, Envelope, Tail
from gateway.services.answers import (
    CallArguments,
    CallStart,
    Event,
    Finish,
    Reasoning,
    Text,
)
from gateway.services.inference import Piece

_json = msgspec.json.encode


def finish_reason(finish: Finish, *, is_named: bool) -> str:
    """Say why a choice ended: calls replace `stop` alone, and not where one was named."""
    return (
        "tool_calls"
        if finish.reason == "stop" and finish.num_calls and not is_named
        else finish.reason
    )


class EventChunks(DataEvents):
    """Frame the events of a chat as `chat.completion.chunk` objects."""

    def __init__(
        self,
        envelope: Envelope,
        *,
        tail: Tail,
        tokenizer: Tokenizer | None = None,
        is_named: bool = False,
        shows_reasoning: bool = True,
    ) -> None:
        self._plain = ChatChunks(envelope, tail=tail, tokenizer=tokenizer)
        self._is_named = is_named
        self._shows_reasoning = shows_reasoning
        self._reasons: dict[int, str] = {}
        self.opening, self.usage = self._plain.opening, self._plain.usage

    def piece(self, index: int, piece: Piece) -> Iterator[bytes]:
        # Not as it is iterated: the end is framed before that.
        for event in piece.events:
            if isinstance(event, Finish):
                self._reasons[index] = finish_reason(event, is_named=self._is_named)
        deltas = [delta for event in piece.events if (delta := self._delta(event))]
        if piece.logprobs and not deltas:
            deltas = [b"{}"]
        return self._framed(index, deltas, piece)

    def finish(self, index: int, reason: str, cause: str | None = None) -> bytes:
        return self._plain.finish(index, self._reasons.get(index, reason), cause)

    def _framed(self, index: int, deltas: list[bytes], piece: Piece) -> Iterator[bytes]:
        for number, delta in enumerate(deltas):
            yield from self._plain.framed(index, delta, () if number else piece.logprobs)

    def _delta(self, event: Event) -> bytes:
        match event:
            case Text(text):
                return b'{"content":%b}' % _json(text)
            case Reasoning(text) if self._shows_reasoning:
                thought = _json(text)
                return b'{"reasoning_content":%b,"reasoning":%b}' % (thought, thought)
            case CallStart(index, call_id, name):
                return (
                    b'{"tool_calls":[{"index":%d,"id":%b,"type":"function",'
                    b'"function":{"name":%b,"arguments":""}}]}'
                    % (index, _json(call_id), _json(name))
                )
            case CallArguments(index, fragment):
                return b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (
                    index,
                    _json(fragment),
                )
            case _:
                return b""
