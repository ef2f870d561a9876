"""A response as events, in OpenAI's order: created, in_progress, those of its items, its end.

Each has the next `sequence_number`. Its `type` stands last, so that the last bytes of a stream say
that it came to its end (`gateway.api.sse.ENDS`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.api.held_bytes import Room
from gateway.api.json_parts import encode_in_parts
from gateway.api.openai.kinds import Answer
from gateway.api.openai.logprobs import chat_logprobs
from gateway.api.responses.output_items import OutputItems
from gateway.api.responses.schemas import ResponseObject, ResponsesRequest
from gateway.api.responses.shaped import fault_of, response_object, status_of
from gateway.api.sse import named_event
from gateway.api.token_usage import Usage
from gateway.errors import GatewayError
from gateway.services.answers import Event, Text
from gateway.services.inference import Piece

_json = msgspec.json.encode
_HEAD = len(b'{"content":[')


class ResponseEvents:
    """Frame the events of one response; what it holds of log-probabilities is taken from `room`."""

    def __init__(self, answer: Answer[ResponsesRequest], room: Room | None = None) -> None:
        self._answer = answer
        self._room = room
        self._number = 0
        self._frames: list[bytes] = []
        self.output = OutputItems(answer.envelope.id.removeprefix("resp_"), self._tell)
        self._reason = ""
        self._cause: str | None = None
        self.is_stored = False

    def opening(self, index: int) -> bytes:
        response = response_object(self._answer, "in_progress", [])
        self._tell("created", {"response": response})
        self._tell("in_progress", {"response": response})
        return self._taken()

    def piece(self, index: int, piece: Piece) -> Iterator[bytes]:
        # Not as it is iterated: the end is framed before that.
        scored = scores_of(self._answer, piece)
        if scored and self._room is not None:
            self._room.grow(len(scored))
        self.output.add(events_of(self._answer, piece), scored)
        return iter((self._taken(),))

    def finish(self, index: int, reason: str, cause: str | None = None) -> bytes:
        self._reason, self._cause = reason, cause
        self.output.finish(reason)
        return self._taken()

    def usage(self, usage: Usage) -> bytes:
        return b""

    def end(self) -> bytes:
        response = self.whole()
        response.store = self.is_stored
        self._tell(response.status, {"response": response})
        return self._taken()

    def error(self, error: GatewayError, usage: Usage | None) -> bytes:
        fault = fault_of(error)
        if not self._number:
            # Nobody has been told of a response yet.
            fields = {"code": error.code, "message": error.message, "param": error.param}
            return _framed("error", fields | {"sequence_number": 0})
        response = response_object(self._answer, "failed", self.output.so_far)
        response.error = fault
        self._taken()
        self._tell("failed", {"response": response})
        return self._taken()

    def whole(self) -> ResponseObject:
        """Return the response as it ended."""
        response = response_object(self._answer, status_of(self._reason), self.output.items)
        response.x_stop_cause = self._cause or msgspec.UNSET
        return response

    def _tell(self, name: str, fields: dict[str, Any]) -> None:
        fields["sequence_number"] = self._number
        self._number += 1
        self._frames.append(_framed(f"response.{name}", fields))

    def _taken(self) -> bytes:
        frames, self._frames = self._frames, []
        return b"".join(frames)


def events_of(answer: Answer[ResponsesRequest], piece: Piece) -> list[Event]:
    """Say what a piece is, where nothing but text was looked for too."""
    if answer.run.generations[0].is_read:
        return list(piece.events)
    return [Text(piece.text)] if piece.text or piece.logprobs else []


def scores_of(answer: Answer[ResponsesRequest], piece: Piece) -> bytes:
    """Spell the log-probabilities of a piece, as items of a JSON list."""
    if not piece.logprobs or not answer.body.include:
        return b""
    spelled = b"".join(encode_in_parts(chat_logprobs(answer.model.tokenizer, piece.logprobs)))
    # `{"content":[…],"refusal":null}`
    return spelled[_HEAD : spelled.rindex(b"]")]


def _framed(name: str, fields: dict[str, Any]) -> bytes:
    return named_event(name.encode(), _json(fields | {"type": name}))
