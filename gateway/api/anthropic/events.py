"""A message as events, in Anthropic's order, and what its end is called.

    message_start, then for each block of the content
        content_block_start, content_block_delta …, content_block_stop
    message_delta with the reason, the stop sequence and the usage, message_stop

Blocks have indices without gaps, and one is closed before the next begins: `Blocks` sees to that
for every kind of block, whatever an answer is made of. A client leaves out what has no `event:`
line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from gateway.api.anthropic.content import NO_INPUT
from gateway.api.anthropic.schemas import (
    BilledAs,
    MessageAnswer,
    MessagesRequest,
    MessageUsage,
    TextBlock,
    ThinkingBlock,
    ThinkingDetails,
    ToolUseBlock,
)
from gateway.api.anthropic.thinking import omits_thinking, shows_thinking, signature_of
from gateway.api.errors import messages_error
from gateway.api.openai.kinds import Answer
from gateway.api.sse import MESSAGE_STOP, named_event
from gateway.api.token_usage import Usage
from gateway.domain import Tier
from gateway.errors import GatewayError
from gateway.services.answers import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    Finish,
    Reasoning,
    Text,
)
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
        self._ends_with: Callable[[], Any] | None = None

    def begin(self, kind: str, block: Any, ends_with: Callable[[], Any] | None = None) -> bytes:
        """Close the open block and begin one, unless one of this kind is open.

        `ends_with` makes the last delta of it, as it is closed.
        """
        if self._open == kind:
            return b""
        before = self.close()
        self._open, self._ends_with = kind, ends_with
        self._num_begun += 1
        start = {"index": self._num_begun - 1, "content_block": block}
        return before + _named("content_block_start", start)

    def delta(self, delta: Any) -> bytes:
        """Go on with the open block."""
        assert self._open is not None, "none is open"
        return _named("content_block_delta", {"index": self._num_begun - 1, "delta": delta})

    def close(self) -> bytes:
        """End the open block, if there is one."""
        if self._open is None:
            return b""
        last = b"" if self._ends_with is None else self.delta(self._ends_with())
        self._open = None
        return last + _named("content_block_stop", {"index": self._num_begun - 1})


class MessageChunks:
    """Frame the events of one message."""

    def __init__(self, answer: Answer[MessagesRequest]) -> None:
        self._answer = answer
        self._blocks = Blocks()
        self._shows = shows_thinking(answer.body)
        self._omits = omits_thinking(answer.body)
        self._thought: list[str] = []
        self._num_calls = 0

    def opening(self, index: int) -> bytes:
        envelope = self._answer.envelope
        message = MessageAnswer(envelope.id, envelope.model, [], usage_of(self._answer), None)
        return _named("message_start", {"message": message})

    def piece(self, index: int, piece: Piece) -> Iterator[bytes]:
        # Not as it is iterated: the end is framed before that.
        if self._answer.run.generations[index].is_read:
            framed = [self._framed(event) for event in piece.events]
        else:
            framed = [self._text(piece.text)]
        return iter([each for each in framed if each])

    def finish(self, index: int, reason: str, cause: str | None = None) -> bytes:
        name, sequence = stop_reason(self._answer, reason, self._num_calls)
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

    def _framed(self, event: Event) -> bytes:
        blocks = self._blocks
        match event:
            case Text(text):
                return self._text(text)
            case Reasoning(text) if text and self._shows:
                return self._thinking(text)
            case CallStart(index, call_id, name):
                self._num_calls += 1
                return blocks.begin(f"call {index}", ToolUseBlock(call_id, name, NO_INPUT))
            case CallArguments(_, text) if text:
                return blocks.delta({"type": "input_json_delta", "partial_json": text})
            case CallEnd():
                return blocks.close()
            case _:
                assert isinstance(event, Finish | Reasoning | CallArguments)
                return b""

    def _text(self, text: str) -> bytes:
        if not text:
            return b""
        begun = self._blocks.begin("text", TextBlock(""))
        return begun + self._blocks.delta({"type": "text_delta", "text": text})

    def _thinking(self, text: str) -> bytes:
        begun = self._blocks.begin("thinking", ThinkingBlock("", ""), self._signed)
        self._thought.append(text)
        if self._omits:
            return begun
        return begun + self._blocks.delta({"type": "thinking_delta", "thinking": text})

    def _signed(self) -> dict[str, str]:
        thought = "".join(self._thought)
        self._thought.clear()
        return {"type": "signature_delta", "signature": signature_of(thought)}


def usage_of(answer: Answer[MessagesRequest]) -> MessageUsage:
    """Count what an answer has used so far."""
    [generation] = answer.run.generations
    cached = generation.num_cached_tokens
    tier: BilledAs = "batch" if answer.is_batch else _TIERS[answer.envelope.service_tier]
    return MessageUsage(
        generation.num_prompt_tokens - cached,
        generation.num_output_tokens,
        cached,
        output_tokens_details=ThinkingDetails(generation.num_reasoning_tokens),
        service_tier=tier,
    )


def stop_reason(
    answer: Answer[MessagesRequest], reason: str, num_calls: int = 0
) -> tuple[str, str | None]:
    """Return Anthropic's word for how a message ended, and the stop sequence that ended it.

    Calls that were made replace the end of a turn alone.
    """
    [generation] = answer.run.generations
    sequence = generation.stop_string
    if sequence is not None:
        return "stop_sequence", sequence
    if reason == "stop" and num_calls:
        return "tool_use", None
    return _REASONS.get(reason, reason), None


def _without_tier(usage: MessageUsage) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.structs.asdict(usage)
    del fields["service_tier"]
    return fields


def _named(name: str, fields: dict[str, Any]) -> bytes:
    return named_event(name.encode(), _json({"type": name, **fields}))
