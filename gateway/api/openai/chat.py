"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.api.openai.chunks import ChatChunks, Chunks, Tail
from gateway.api.openai.event_chunks import EventChunks, finish_reason
from gateway.api.openai.kinds import Answer
from gateway.api.openai.logprobs import chat_logprobs
from gateway.api.openai.parameters import CHAT, Fates
from gateway.api.openai.reading import Ignored, Reader
from gateway.api.openai.sampling import (
    choice_params,
    default_max_tokens,
    num_choices,
    requested_max_tokens,
    requested_salt,
    sampling_params,
    stop_strings,
)
from gateway.api.openai.schemas import (
    AssistantMessage,
    CalledFunction,
    ChatChoice,
    ChatCompletion,
    ChatRequest,
    ToolCall,
)
from gateway.api.openai.tools import constraint_of, reading_of, requested_tools, without_calls
from gateway.api.openai.turns import Turns
from gateway.services.answers import gathered_answer
from gateway.services.inference import Job, Piece, ServedModel

_FATES: Final = Fates(CHAT)


class Chat:
    """Shape chat completions."""

    id_prefix = "chatcmpl-"
    makes_vectors = False

    def __init__(self, *, ignores_unknown: bool = False) -> None:
        self.reader = Reader(ChatRequest, ignores_unknown=ignores_unknown)

    def jobs(
        self, body: ChatRequest, model: ServedModel, request_id: str, ignored: Ignored
    ) -> list[Job]:
        """Build a job a choice. Raises: `InvalidRequest`."""
        _FATES.refuse(body)
        for name in _FATES.taken(body):
            ignored.add(name)
        bound = requested_max_tokens(body)
        info, defaults = model.info, model.sampling_defaults
        most = bound or default_max_tokens(body, info, defaults)
        params = sampling_params(body, info, defaults, max_tokens=most)
        turns = Turns(model, ignored, ignores_unknown=self.reader.ignores_unknown)
        prompt, stop = turns.messages(body.messages), stop_strings(body)
        variables = turns.variables(body.chat_template_kwargs, effort=body.reasoning_effort)
        salt = requested_salt(body)
        n = num_choices(body)
        offer = requested_tools(body, model, ignored)
        if not offer.tools:
            params = without_calls(params, model, prompt, has_tools=bool(body.tools))
        stop = offer.stops(stop, "stop", ignored)
        constraint, reading = constraint_of(body, model, offer), reading_of(body, model, offer)
        return [
            Job(
                request_id=f"{request_id}-{choice}",
                prompt=prompt,
                params=choice_params(params, choice),
                stop=stop,
                clip_max_tokens=bound is None,
                adds_special_tokens=body.add_special_tokens,
                template_variables=variables,
                salt=salt,
                tools=offer.tools,
                tools_chars=offer.num_chars,
                reading=reading,
                constraint=constraint,
            )
            for choice in range(n)
        ]

    def chunks(self, answer: Answer[ChatRequest], *, tail: Tail) -> Chunks:
        tokenizer = answer.model.tokenizer if answer.body.logprobs else None
        if not answer.run.generations[0].is_read:
            return ChatChunks(answer.envelope, tail=tail, tokenizer=tokenizer)
        return EventChunks(
            answer.envelope,
            tail=tail,
            tokenizer=tokenizer,
            is_named=_is_named(answer.body),
            shows_reasoning=answer.body.include_reasoning is not False,
        )

    def document(self, answer: Answer[ChatRequest], pieces: list[Piece]) -> ChatCompletion:
        envelope = answer.envelope
        return ChatCompletion(
            envelope.id,
            envelope.created_s,
            envelope.model,
            [_choice(answer, index, piece) for index, piece in enumerate(pieces)],
            answer.usage(),
            service_tier=envelope.service_tier,
            system_fingerprint=envelope.fingerprint,
        )


def _is_named(body: ChatRequest) -> bool:
    return isinstance(body.tool_choice, dict) and body.tool_choice.get("type") == "function"


def _choice(answer: Answer[ChatRequest], index: int, piece: Piece) -> ChatChoice:
    body, tokenizer = answer.body, answer.model.tokenizer
    message, reason = AssistantMessage(piece.text), piece.ended_by
    if answer.run.generations[index].is_read:
        message, reason = _read(body, piece)
    return ChatChoice(
        index,
        message,
        reason,
        chat_logprobs(tokenizer, piece.logprobs) if body.logprobs else None,
        answer.run.stop_cause_of(index, piece) or msgspec.UNSET,
    )


def _read(body: ChatRequest, piece: Piece) -> tuple[AssistantMessage, str]:
    """Return the message of an answer that was read, and why it ended."""
    read = gathered_answer(piece.events)
    assert read.finish is not None, "the last piece has the end"
    is_all = not read.calls and not read.reasoning
    thought = read.reasoning if read.reasoning and body.include_reasoning is not False else None
    calls = [ToolCall(one.id, CalledFunction(one.name, one.arguments)) for one in read.calls]
    message = AssistantMessage(
        read.text if read.text or is_all else None,
        tool_calls=calls or msgspec.UNSET,
        reasoning_content=thought or msgspec.UNSET,
        reasoning=thought or msgspec.UNSET,
    )
    return message, finish_reason(read.finish, is_named=_is_named(body))
