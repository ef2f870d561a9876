"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.api.body import JsonBody
from gateway.api.openai.chunks import ChatChunks
from gateway.api.openai.endpoint import Answer
from gateway.api.openai.logprobs import chat_logprobs
from gateway.api.openai.sampling import (
    choice_params,
    num_choices,
    refuse_unsupported,
    requested_max_tokens,
    sampling_params,
    stop_strings,
)
from gateway.api.openai.schemas import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatMessage,
    ChatRequest,
    ResponseFormat,
)
from gateway.errors import InvalidRequest
from gateway.services.inference import Job, Message, Piece, ServedModel

ROLES: Final = ("system", "developer", "user", "assistant")
MAX_MESSAGES: Final = 1024

# What this server does not do → the values that ask for nothing.
_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "response_format": (None, ResponseFormat("text")),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "reasoning_effort": (None,),
    "verbosity": (None,),
    "web_search_options": (None,),
    "prompt_cache_retention": (None,),
    "store": (None, False),
}
_NEUTRAL_IN_MESSAGE: Final[dict[str, tuple[Any, ...]]] = {
    "name": (None,),
    "audio": (None,),
    "function_call": (None,),
    "tool_calls": (None, []),
    "tool_call_id": (None,),
}


class Chat:
    """Shape chat completions."""

    body = JsonBody(ChatRequest)
    id_prefix = "chatcmpl"

    def jobs(self, body: ChatRequest, model: ServedModel, request_id: str) -> list[Job]:
        """Build a job a choice. Raises: `InvalidRequest`."""
        refuse_unsupported(
            {field: getattr(body, field) not in neutral for field, neutral in _NEUTRAL.items()}
        )
        bound = requested_max_tokens(body)
        params = sampling_params(body, model.info, max_tokens=bound or model.info.max_model_len)
        prompt, stop = _messages(body.messages), stop_strings(body)
        n = num_choices(body)
        return [
            Job(
                request_id=f"{request_id}-{choice}",
                prompt=prompt,
                params=choice_params(params, choice),
                stop=stop,
                clip_max_tokens=bound is None,
            )
            for choice in range(n)
        ]

    def chunks(self, answer: Answer[ChatRequest], *, include_usage: bool) -> ChatChunks:
        tokenizer = answer.model.tokenizer if answer.body.logprobs else None
        return ChatChunks(answer.envelope, include_usage=include_usage, tokenizer=tokenizer)

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


def _messages(messages: list[ChatMessage]) -> tuple[Message, ...]:
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise InvalidRequest(
            f"'messages' must hold 1 to {MAX_MESSAGES} messages, not {len(messages)}.",
            param="messages",
        )
    return tuple(_message(index, message) for index, message in enumerate(messages))


def _message(index: int, message: ChatMessage) -> Message:
    if message.role not in ROLES:
        raise InvalidRequest(
            f"Unknown role; choose one of {', '.join(ROLES)}.",
            param=f"messages[{index}].role",
        )
    refuse_unsupported(
        {
            f"messages[{index}].{field}": getattr(message, field) not in neutral
            for field, neutral in _NEUTRAL_IN_MESSAGE.items()
        }
    )
    # Templates know the older word; OpenAI defines the two as the same rank.
    role = "system" if message.role == "developer" else message.role
    return Message(role, _text(index, message))


def _text(index: int, message: ChatMessage) -> str:
    where = f"messages[{index}].content"
    if isinstance(message.content, str):
        return message.content
    if message.content is None:
        raise InvalidRequest("The message has no content.", param=where)
    return "".join(_part(f"{where}[{number}]", part) for number, part in enumerate(message.content))


def _part(where: str, part: dict[str, Any]) -> str:
    text = part.get("text")
    if part.get("type") != "text" or not isinstance(text, str):
        raise InvalidRequest(
            "Only text parts, {'type': 'text', 'text': …}, are supported.", param=where
        )
    if unknown := set(part) - {"type", "text"}:
        raise InvalidRequest(
            "A text part holds nothing but 'type' and 'text'.",
            param=f"{where}.{min(unknown)}",
            code="unknown_parameter",
        )
    return text
