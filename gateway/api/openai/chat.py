"""`POST /v1/chat/completions`."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from engine.text import RESERVED_NAMES
from gateway.api.openai.chunks import ChatChunks, Tail
from gateway.api.openai.endpoint import Answer
from gateway.api.openai.logprobs import chat_logprobs
from gateway.api.openai.parameters import CHAT, MESSAGE, PART, Fates
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
    ChatMessage,
    ChatRequest,
)
from gateway.errors import InvalidRequest
from gateway.services.inference import Job, Message, Piece, ServedModel

ROLES: Final = ("system", "developer", "user", "assistant")
MAX_MESSAGES: Final = 1024

MAX_NAME_CHARS: Final = 256
MAX_EFFORT_CHARS: Final = 64
MAX_TEMPLATE_KWARGS: Final = 16
MAX_TEMPLATE_KWARG_CHARS: Final = 256

_BODY, _MESSAGE, _PART = Fates(CHAT), Fates(MESSAGE), Fates(PART)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)


class Chat:
    """Shape chat completions."""

    id_prefix = "chatcmpl"

    def __init__(self, *, ignores_unknown: bool = False) -> None:
        self.reader = Reader(ChatRequest, ignores_unknown=ignores_unknown)

    def jobs(
        self, body: ChatRequest, model: ServedModel, request_id: str, ignored: Ignored
    ) -> list[Job]:
        """Build a job a choice. Raises: `InvalidRequest`."""
        _BODY.refuse(body)
        for name in _BODY.taken(body):
            ignored.add(name)
        bound = requested_max_tokens(body)
        info, defaults = model.info, model.sampling_defaults
        most = bound or default_max_tokens(body, info, defaults)
        params = sampling_params(body, info, defaults, max_tokens=most)
        turns = _Turns(model, ignored, ignores_unknown=self.reader.ignores_unknown)
        prompt, stop = turns.messages(body.messages), stop_strings(body)
        variables, salt = turns.variables(body), requested_salt(body)
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


class _Turns:
    """Read the turns of a chat, and what else its template is given."""

    def __init__(self, model: ServedModel, ignored: Ignored, *, ignores_unknown: bool) -> None:
        self._used = model.chat_template.names if model.chat_template else frozenset()
        self._ignored = ignored
        self._ignores_unknown = ignores_unknown

    def messages(self, messages: list[ChatMessage]) -> tuple[Message, ...]:
        if not 1 <= len(messages) <= MAX_MESSAGES:
            raise InvalidRequest(
                f"'messages' must hold 1 to {MAX_MESSAGES} messages, not {len(messages)}.",
                param="messages",
            )
        return tuple(self._message(index, message) for index, message in enumerate(messages))

    def variables(self, body: ChatRequest) -> dict[str, Any]:
        """Return what a template sees beside the messages; name what it does not look at."""
        given: dict[str, Any] = {}
        if body.reasoning_effort is not None:
            if len(body.reasoning_effort) > MAX_EFFORT_CHARS:
                raise InvalidRequest(
                    f"'reasoning_effort' takes up to {MAX_EFFORT_CHARS} characters.",
                    param="reasoning_effort",
                )
            self._give(given, "reasoning_effort", body.reasoning_effort)
        for name, value in _checked_kwargs(body.chat_template_kwargs or {}).items():
            self._give(given, name, value, under="chat_template_kwargs.")
        return given

    def _give(self, given: dict[str, Any], name: str, value: Any, *, under: str = "") -> None:
        if name in self._used and name not in RESERVED_NAMES:
            given[name] = value
        else:
            self._ignored.add(under + name)

    def _message(self, index: int, message: ChatMessage) -> Message:
        if message.role not in ROLES:
            raise InvalidRequest(
                f"Unknown role; choose one of {', '.join(ROLES)}.",
                param=f"messages[{index}].role",
            )
        _MESSAGE.refuse(message, under=f"messages[{index}].")
        for name in _MESSAGE.taken(message):
            self._ignored.add(f"messages.{name}")
        # Templates know the older word; OpenAI defines the two as the same rank.
        role = "system" if message.role == "developer" else message.role
        return Message(role, self._text(index, message), self._name(index, message))

    def _name(self, index: int, message: ChatMessage) -> str | None:
        if message.name is not None and len(message.name) > MAX_NAME_CHARS:
            raise InvalidRequest(
                f"A name has up to {MAX_NAME_CHARS} characters.", param=f"messages[{index}].name"
            )
        if message.name is None or "name" in self._used:
            return message.name
        self._ignored.add("messages.name")
        return None

    def _text(self, index: int, message: ChatMessage) -> str:
        where = f"messages[{index}].content"
        if isinstance(message.content, str):
            return message.content
        if message.content is None:
            if message.role == "assistant":
                return ""
            raise InvalidRequest("The message has no content.", param=where)
        parts = enumerate(message.content)
        return "".join(self._part(f"{where}[{number}]", part) for number, part in parts)

    def _part(self, where: str, part: dict[str, Any]) -> str:
        text = part.get("text")
        if part.get("type") != "text" or not isinstance(text, str):
            raise InvalidRequest(
                "Only text parts, {'type': 'text', 'text': …}, are supported.", param=where
            )
        if len(part) > 2:
            for name in _PART.taken_of(part):
                self._ignored.add(f"messages.content.{name}")
            self._unknown(where, part)
        return text

    def _unknown(self, where: str, part: dict[str, Any]) -> None:
        for name in sorted(part.keys() - _PART.names):
            if part[name] is None:
                continue
            if not self._ignores_unknown:
                raise InvalidRequest(
                    f"Unknown field in a text part: {name[:64]}.",
                    param=f"{where}.{name[:64]}",
                    code="unknown_parameter",
                )
            self._ignored.add(f"messages.content.{name}")


def _checked_kwargs(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return what a template may be given. Raises: `InvalidRequest`."""
    param = "chat_template_kwargs"
    if len(kwargs) > MAX_TEMPLATE_KWARGS:
        raise InvalidRequest(f"'{param}' takes up to {MAX_TEMPLATE_KWARGS} names.", param=param)
    for name, value in kwargs.items():
        if not _VARIABLE.fullmatch(name):
            raise InvalidRequest(f"'{param}' takes names of letters, digits and '_'.", param=param)
        if len(str(value)) > MAX_TEMPLATE_KWARG_CHARS:
            raise InvalidRequest(
                f"'{param}' takes values of up to {MAX_TEMPLATE_KWARG_CHARS} characters.",
                param=param,
            )
    return kwargs
