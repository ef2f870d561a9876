"""The messages of a chat, and what else its template is given: checked, and made text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Any, Final

from gateway.api.openai.bounds import (
    MAX_EFFORT_CHARS,
    MAX_MESSAGES,
    MAX_NAME_CHARS,
    MAX_TEMPLATE_KWARG_CHARS,
    MAX_TEMPLATE_KWARGS,
    ROLES,
    TEMPLATE_KWARG,
)
from gateway.api.openai.history_calls import history_calls, result_of
from gateway.api.openai.parameters import MESSAGE, PART, Fates
from gateway.api.openai.reading import Ignored
from gateway.api.openai.schemas import ChatMessage
from gateway.errors import InvalidRequest
from gateway.services.inference import Message, ServedModel

_MESSAGE, _PART = Fates(MESSAGE), Fates(PART)
# What templates call the switch of thinking.
_SWITCHES: Final = ("enable_thinking", "thinking")
_VARIABLE: Final = re.compile(TEMPLATE_KWARG, re.ASCII)


class Turns:
    """Read the turns of a chat, and what else its template is given."""

    def __init__(self, model: ServedModel, ignored: Ignored, *, ignores_unknown: bool) -> None:
        template = model.chat_template
        self._used: Set[str] = template.names if template else frozenset()
        self._variables: Set[str] = template.free_names if template else frozenset()
        self._ignored = ignored
        self._ignores_unknown = ignores_unknown

    def messages(self, messages: list[ChatMessage]) -> tuple[Message, ...]:
        if not 1 <= len(messages) <= MAX_MESSAGES:
            raise InvalidRequest(
                f"'messages' must hold 1 to {MAX_MESSAGES} messages, not {len(messages)}.",
                param="messages",
            )
        return tuple(self._message(index, message) for index, message in enumerate(messages))

    @property
    def can_switch(self) -> bool:
        """Tell whether the template has a switch of thinking."""
        return any(switch in self._variables for switch in _SWITCHES)

    def variables(
        self,
        kwargs: Mapping[str, Any] | None,
        *,
        effort: str | None = None,
        thinks: bool | None = None,
    ) -> dict[str, Any]:
        """Return what a template sees beside the messages; name what it does not look at.

        `thinks` turns its switch of thinking, whatever the effort.
        """
        given: dict[str, Any] = {}
        if effort is not None:
            if len(effort) > MAX_EFFORT_CHARS:
                raise InvalidRequest(
                    f"'reasoning_effort' takes up to {MAX_EFFORT_CHARS} characters.",
                    param="reasoning_effort",
                )
            self._give_effort(given, effort)
        if thinks is not None:
            given |= {switch: thinks for switch in _SWITCHES if switch in self._variables}
        for name, value in _checked_kwargs(kwargs or {}).items():
            self._give(given, name, value, under="chat_template_kwargs.")
        return given

    def _give_effort(self, given: dict[str, Any], effort: str) -> None:
        """Say how much to think, in the template's own words."""
        for switch in _SWITCHES:
            if switch in self._variables:
                given[switch] = effort != "none"
        if "reasoning_effort" in self._variables or not given:
            self._give(given, "reasoning_effort", effort)

    def _give(self, given: dict[str, Any], name: str, value: Any, *, under: str = "") -> None:
        if name in self._variables:
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
        text, sender = self._text(index, message), self._name(index, message)
        calls = history_calls(index, message, self._ignored)
        return Message(
            role, text, sender, calls, result_of(index, message), self._reasoning(message)
        )

    def _reasoning(self, message: ChatMessage) -> str | None:
        """Return what an assistant thought, for a template that looks at it."""
        thought: str | None = None
        for name in ("reasoning", "reasoning_content"):
            said = getattr(message, name)
            if said is None:
                continue
            if isinstance(said, str) and "reasoning_content" in self._used:
                thought = said
            else:
                self._ignored.add(f"messages.{name}")
        return thought

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


def _checked_kwargs(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
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
