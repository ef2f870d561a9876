"""`POST /v1/messages`."""

from __future__ import annotations

from typing import Final

import msgspec

from engine.contract import SamplingParams
from gateway.api.anthropic.asked import check_asked
from gateway.api.anthropic.content import content_of
from gateway.api.anthropic.events import MessageChunks, stop_reason, usage_of
from gateway.api.anthropic.form import requested_form
from gateway.api.anthropic.schemas import (
    AnswerBlock,
    MessageAnswer,
    MessageParam,
    MessagesRequest,
    TextBlock,
    ToolUseBlock,
)
from gateway.api.anthropic.thinking import omits_thinking, shows_thinking
from gateway.api.anthropic.turns import conversation
from gateway.api.openai.bounds import MAX_STOP_CHARS
from gateway.api.openai.chunks import Tail
from gateway.api.openai.kinds import Answer
from gateway.api.openai.reading import Ignored, Reader
from gateway.api.openai.sampling import sampling_params
from gateway.api.openai.schemas import ChatRequest
from gateway.api.openai.tools import without_calls
from gateway.api.ranges import int_in_range
from gateway.errors import InvalidRequest
from gateway.services.inference import Job, Piece, ServedModel

MAX_STOP_SEQUENCES: Final = 16
MAX_TOKENS: Final = (1 << 31) - 1


class Messages:
    """Shape messages."""

    id_prefix = "msg_"
    makes_vectors = False

    def __init__(self, *, ignores_unknown: bool = False) -> None:
        self.reader = Reader(MessagesRequest, ignores_unknown=ignores_unknown, turn=MessageParam)

    def jobs(
        self, body: MessagesRequest, model: ServedModel, request_id: str, ignored: Ignored
    ) -> list[Job]:
        """Build the job. Raises: `InvalidRequest`."""
        check_asked(body, ignored)
        params = _params(body, model)
        turns = conversation(body, model, ignored, ignores_unknown=self.reader.ignores_unknown)
        if not turns.tools.offer.tools:
            params = without_calls(params, model, turns.messages, has_tools=bool(body.tools))
        job = turns.job(
            f"{request_id}-0",
            params,
            turns.tools.offer.stops(_stop_sequences(body), "stop_sequences", ignored),
            reading=turns.tools.reading(model),
            constraint=turns.tools.held(requested_form(body), model),
        )
        return [job]

    def chunks(self, answer: Answer[MessagesRequest], *, tail: Tail) -> MessageChunks:
        return MessageChunks(answer)

    def document(self, answer: Answer[MessagesRequest], pieces: list[Piece]) -> MessageAnswer:
        [piece] = pieces
        content = _content(answer, piece)
        num_calls = sum(isinstance(block, ToolUseBlock) for block in content)
        reason, sequence = stop_reason(answer, piece.ended_by, num_calls)
        return MessageAnswer(
            answer.envelope.id,
            answer.envelope.model,
            content,
            usage_of(answer),
            reason,
            sequence,
            x_stop_cause=answer.run.stop_cause_of(0, piece) or msgspec.UNSET,
        )


def _content(answer: Answer[MessagesRequest], piece: Piece) -> list[AnswerBlock]:
    [generation] = answer.run.generations
    if not generation.is_read:
        return [TextBlock(piece.text)] if piece.text else []
    return content_of(
        piece.events,
        shows_thinking=shows_thinking(answer.body),
        omits_thinking=omits_thinking(answer.body),
    )


def _params(body: MessagesRequest, model: ServedModel) -> SamplingParams:
    """Read what is asked of sampling as a chat's is read: the same names, ranges and defaults."""
    most = int_in_range("max_tokens", body.max_tokens, 1, MAX_TOKENS, default=1)
    asked = ChatRequest(
        model=body.model,
        messages=[],
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
    )
    return sampling_params(asked, model.info, model.sampling_defaults, max_tokens=most)


def _stop_sequences(body: MessagesRequest) -> tuple[str, ...]:
    stops = tuple(body.stop_sequences or ())
    if len(stops) > MAX_STOP_SEQUENCES:
        raise InvalidRequest(
            f"'stop_sequences' takes up to {MAX_STOP_SEQUENCES} texts, not {len(stops)}.",
            param="stop_sequences",
        )
    if any(not 1 <= len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise InvalidRequest(
            f"Each of 'stop_sequences' must have 1 to {MAX_STOP_CHARS} characters.",
            param="stop_sequences",
        )
    return stops
