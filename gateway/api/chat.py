"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Final

from gateway.api.body import JsonBody
from gateway.api.chunks import ChatChunks, Envelope
from gateway.api.sampling import requested_max_tokens, sampling_params, stop_strings
from gateway.api.schemas import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatMessage,
    ChatRequest,
    Usage,
)
from gateway.errors import InvalidRequest
from gateway.services.inference import Job, Message
from gateway.services.models import ServedModel

ROLES: Final = ("system", "developer", "user", "assistant")
MAX_MESSAGES: Final = 1024


class Chat:
    """Shape chat completions."""

    body = JsonBody(ChatRequest)
    id_prefix = "chatcmpl"

    def jobs(self, body: ChatRequest, model: ServedModel, request_id: str) -> list[Job]:
        """Build the one job of a chat request. Raises: `InvalidRequest`."""
        bound = requested_max_tokens(body)
        params = sampling_params(
            body,
            max_tokens=bound or model.info.max_model_len,
            vocab_size=model.info.vocab_size,
            capabilities=model.info.capabilities,
        )
        return [
            Job(
                request_id=request_id,
                prompt=_messages(body.messages),
                params=params,
                stop=stop_strings(body),
                clip_max_tokens=bound is None,
            )
        ]

    def chunks(self, envelope: Envelope, *, include_usage: bool) -> ChatChunks:
        return ChatChunks(envelope, include_usage=include_usage)

    def document(
        self, envelope: Envelope, texts: list[tuple[str, str]], usage: Usage
    ) -> ChatCompletion:
        choices = [
            ChatChoice(index, AssistantMessage(text), reason)
            for index, (text, reason) in enumerate(texts)
        ]
        return ChatCompletion(
            envelope.id,
            envelope.created_s,
            envelope.model,
            choices,
            usage,
            system_fingerprint=envelope.fingerprint,
        )


def _messages(messages: list[ChatMessage]) -> tuple[Message, ...]:
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise InvalidRequest(
            f"'messages' must hold 1 to {MAX_MESSAGES} messages, not {len(messages)}.",
            param="messages",
            code="invalid_value",
        )
    return tuple(_message(index, message) for index, message in enumerate(messages))


def _message(index: int, message: ChatMessage) -> Message:
    if message.role not in ROLES:
        raise InvalidRequest(
            f"Unknown role; choose one of {', '.join(ROLES)}.",
            param=f"messages[{index}].role",
            code="invalid_value",
        )
    # Templates know the older word; OpenAI defines the two as the same rank.
    role = "system" if message.role == "developer" else message.role
    return Message(role, _text(index, message))


def _text(index: int, message: ChatMessage) -> str:
    where = f"messages[{index}].content"
    if isinstance(message.content, str):
        return message.content
    if message.content is None:
        raise InvalidRequest("The message has no content.", param=where, code="invalid_value")
    for number, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            raise InvalidRequest(
                "Only text parts, {'type': 'text', 'text': …}, are supported.",
                param=f"{where}[{number}]",
                code="invalid_value",
            )
    return "".join(part.text or "" for part in message.content)
