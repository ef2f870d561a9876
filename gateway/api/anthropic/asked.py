"""What a message may not ask for, and what of it has no effect: told apart field by field."""

from __future__ import annotations

from typing import Any, Final

from gateway.api.anthropic.parameters import COUNT
from gateway.api.anthropic.parameters import MESSAGES as TABLE
from gateway.api.anthropic.schemas import MessagesFields, MessagesRequest
from gateway.api.openai.bounds import MAX_EFFORT_CHARS
from gateway.api.openai.parameters import Fates, Parameter, unsupported
from gateway.api.openai.reading import Ignored
from gateway.errors import InvalidRequest

MAX_USER_CHARS: Final = 512
# Whether these ask for something, their insides say.
_TOLD_APART: Final = ("thinking", "tools", "tool_choice", "metadata")
_NO_EFFECT: Final = ("adaptive", "between_tools")


def _plain(table: tuple[Parameter, ...]) -> Fates:
    return Fates([each for each in table if each.name not in _TOLD_APART])


_MESSAGE: Final = _plain(TABLE)
_COUNT: Final = _plain(COUNT)


def check_asked(body: MessagesFields, ignored: Ignored) -> None:
    """Refuse what nobody here does, and name what is taken without effect.

    Raises: `InvalidRequest`, `UnsupportedParameter`.
    """
    fates = _MESSAGE if isinstance(body, MessagesRequest) else _COUNT
    fates.refuse(body)
    for name in fates.taken(body):
        ignored.add(name)
    _check_thinking(body.thinking, ignored)
    _check_tools(body, ignored)
    _check_output(body.output_config or {})
    if isinstance(body, MessagesRequest) and body.labels:
        _check_labels(body.labels, ignored)


def _check_thinking(thinking: dict[str, Any] | None, ignored: Ignored) -> None:
    if thinking is None:
        return
    kind = _kind(thinking, "thinking")
    if kind in _NO_EFFECT:
        ignored.add("thinking")
    elif kind != "disabled":
        raise unsupported("thinking.type")


def _check_tools(body: MessagesFields, ignored: Ignored) -> None:
    """Without a way to call them, tools may only be there to be left alone."""
    kind = None if body.tool_choice is None else _kind(body.tool_choice, "tool_choice")
    if kind == "none":
        if body.tools:
            ignored.add("tools")
        return
    if body.tools:
        raise unsupported("tools")
    if kind not in (None, "auto"):
        raise unsupported("tool_choice.type")


def _check_output(config: dict[str, Any]) -> None:
    for name, value in config.items():
        if value is None:
            continue
        if name != "effort":
            raise unsupported(f"output_config.{name[:64]}")
        if not isinstance(value, str) or len(value) > MAX_EFFORT_CHARS:
            raise InvalidRequest(
                f"'output_config.effort' is a text of up to {MAX_EFFORT_CHARS} characters.",
                param="output_config.effort",
            )


def _check_labels(labels: dict[str, Any], ignored: Ignored) -> None:
    for name, value in labels.items():
        if name != "user_id":
            raise InvalidRequest("'metadata' takes 'user_id'.", param=f"metadata.{name[:64]}")
        is_text = isinstance(value, str) and len(value) <= MAX_USER_CHARS
        if value is not None and not is_text:
            raise InvalidRequest(
                f"'metadata.user_id' is a text of up to {MAX_USER_CHARS} characters.",
                param="metadata.user_id",
            )
    ignored.add("metadata")


def _kind(value: dict[str, Any], param: str) -> str:
    kind = value.get("type")
    if not isinstance(kind, str):
        raise InvalidRequest(f"'{param}' has a 'type'.", param=f"{param}.type")
    return kind
