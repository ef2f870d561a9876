"""A message as events, in Anthropic's order, and what its end is called.

    message_start, then for each block of the content
        content_block_start, content_block_delta …, content_block_stop
    message_delta with the reason, the stop sequence and the usage, message_stop

Blocks have indices without gaps, and one is closed before the next begins: `Blocks` sees to that
for every kind of block, whatever an answer is made of. A client leaves out what has no `event:`
line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from gateway.api.anthropic.schemas import (
    BilledAs,
    MessageAnswer,
    MessagesRequest,
    MessageUsage,
    TextBlock,
)
from gateway.api.errors import messages_error
from gateway.api.openai.kinds import Answer
from gateway.api.sse import MESSAGE_STOP, named_event
from gateway.api.token_usage import Usage
from gateway.domain import Tier
from gateway.errors import GatewayError
from gateway.services.inference import Piece

_json = msgspec.json.encode
_TIERS: Final[dict[Tier, BilledAs]] = {
    Tier.PRIORITY: "priority",
    Tier.DEFAULT: "standard",
    Tier.FLEX: "standard",
}
_REASONS: Final = {"stop": "end_turn", "length": "max_tokens"}


class Blocks:
    """Frame the blocks of a message's content, each under an index of its own."""

    def __init__(self) -> None:
        self._num_begun = 0
        self._open: str | None = None

    def delta(self, kind: str, block: Any, delta: Any) -> bytes:
        """Go on with the open block of a kind; begin it as `block` where another is open."""
        before = b""
        if self._open != kind:
            before = self.close() + self._begin(kind, block)
        index = self._num_begun - 1
        return before + _named("content_block_delta", {"index": index, "delta": delta})

    def close(self) -> bytes:
        """End the open block, if there is one."""
        if self._open is None:
            return b""
        self._open = None
        return _named("content_block_stop", {"index": self._num_begun - 1})

    def _begin(self, kind: str, block: Any) -> bytes:
        self._open = kind
        self._num_begun += 1
        return _named("content_block_start", {"index": self._num_begun - 1, "content_block": block})


class MessageChunks:
    """Frame the events of one message."""

    def __init__(self, answer: Answer[MessagesRequest]) -> None:
        self._answer = answer
        self._blocks = Blocks()

    def opening(self, index: int) -> bytes:
        envelope = self._answer.envelope
        message = MessageAnswer(envelope.id, envelope.model, [], usage_of(self._answer), None)
        return _named("message_start", {"message": message})

    def piece(self, index: int, piece: Piece) -> Iterator[bytes]:
        if not piece.text:
            return iter(())
        delta = {"type": "text_delta", "text": piece.text}
        return iter((self._blocks.delta("text", TextBlock(""), delta),))

    def finish(self, index: int, reason: str, cause: str | None = None) -> bytes:
        name, sequence = stop_reason(self._answer, reason)
        delta = {"stop_reason": name, "stop_sequence": sequence}
        if cause is not None:
            delta["x_stop_cause"] = cause
        usage = _without_tier(usage_of(self._answer))
        return self._blocks.close() + _named("message_delta", {"delta": delta, "usage": usage})

    def usage(self, usage: Usage) -> bytes:
        return b""

    def end(self) -> bytes:
        return MESSAGE_STOP

    def error(self, error: GatewayError, usage: Usage | None) -> bytes:
        request_id = self._answer.envelope.id.removeprefix("msg_")
        return named_event(b"error", _json(messages_error(error, request_id)))


def usage_of(answer: Answer[MessagesRequest]) -> MessageUsage:
    """Count what an answer has used so far."""
    [generation] = answer.run.generations
    cached = generation.num_cached_tokens
    tier: BilledAs = "batch" if answer.is_batch else _TIERS[answer.envelope.service_tier]
    return MessageUsage(
        generation.num_prompt_tokens - cached,
        generation.num_output_tokens,
        cached,
        service_tier=tier,
    )


def stop_reason(answer: Answer[MessagesRequest], reason: str) -> tuple[str, str | None]:
    """Return Anthropic's word for how a message ended, and the stop sequence that ended it."""
    [generation] = answer.run.generations
    sequence = generation.stop_string
    if sequence is not None:
        return "stop_sequence", sequence
    return _REASONS.get(reason, reason), None


def _without_tier(usage: MessageUsage) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.structs.asdict(usage)
    del fields["service_tier"]
    return fields


def _named(name: str, fields: dict[str, Any]) -> bytes:
    return named_event(name.encode(), _json({"type": name, **fields}))
