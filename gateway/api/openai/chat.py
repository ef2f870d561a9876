"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.api.openai.chunks import ChatChunks, Tail
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
    ChatChoice,
    ChatCompletion,
    ChatRequest,
)
from gateway.api.openai.turns import Turns
from gateway.services.inference import Job, Piece, ServedModel

_FATES: Final = Fates(CHAT)


class Chat:
    """Shape chat completions."""

    id_prefix = "chatcmpl"
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
            )
            for choice in range(n)
        ]

    def chunks(self, answer: Answer[ChatRequest], *, tail: Tail) -> ChatChunks:
        tokenizer = answer.model.tokenizer if answer.body.logprobs else None
        return ChatChunks(answer.envelope, tail=tail, tokenizer=tokenizer)

    def document(self, answer: Answer[ChatRequest], pieces: list[Piece]) -> ChatCompletion:
        tokenizer, envelope = answer.model.tokenizer, answer.envelope
        choices = [
            ChatChoice(
                index,
                AssistantMessage(piece.text),
                piece.ended_by,
                chat_logprobs(tokenizer, piece.logprobs) if answer.body.logprobs else None,
                answer.run.stop_cause_of(index, piece) or msgspec.UNSET,
            )
            for index, piece in enumerate(pieces)
        ]
        return ChatCompletion(
            envelope.id,
            envelope.created_s,
            envelope.model,
            choices,
            answer.usage(),
            service_tier=envelope.service_tier,
            system_fingerprint=envelope.fingerprint,
        )
