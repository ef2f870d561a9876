"""The content of a whole message: the blocks that its answer's events make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final

import msgspec

from gateway.api.anthropic.schemas import AnswerBlock, TextBlock, ThinkingBlock, ToolUseBlock
from gateway.api.anthropic.thinking import signature_of
from gateway.services.answers import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    Finish,
    Reasoning,
    Text,
)

NO_INPUT: Final = msgspec.Raw(b"{}")
_object: Final = msgspec.json.Decoder(dict[str, Any])
# What ends a line, which stands between JSON's values alone: an item of a batch is a line.
_ENDS: Final = b"\r\n"


def content_of(
    events: Iterable[Event], *, shows_thinking: bool = True, omits_thinking: bool = False
) -> list[AnswerBlock]:
    """Return the blocks of an answer, in the order in which a stream has them."""
    content: list[AnswerBlock] = []
    for _, group in groupby(_shown(events, shows_thinking=shows_thinking), _place):
        some = list(group)
        text = "".join(
            each.text for each in some if isinstance(each, Text | Reasoning | CallArguments)
        )
        match some[0]:
            case Text():
                content.append(TextBlock(text))
            case Reasoning():
                shown = "" if omits_thinking else text
                content.append(ThinkingBlock(shown, signature_of(text)))
            case CallStart(_, call_id, name):
                content.append(tool_use(call_id, name, text))
    return content


def tool_use(call_id: str, name: str, written: str) -> ToolUseBlock:
    """Hold a call, its input as the model wrote it, where that is an object."""
    raw = (written or "{}").encode("utf-8", "surrogatepass")
    try:
        _object.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ToolUseBlock(call_id, name, NO_INPUT, written)
    return ToolUseBlock(call_id, name, msgspec.Raw(raw.translate(None, _ENDS)))


def _shown(events: Iterable[Event], *, shows_thinking: bool) -> Iterator[Event]:
    for event in events:
        match event:
            case Finish():
                continue
            case Reasoning() if not shows_thinking:
                continue
            case Text(text) | Reasoning(text) if not text:
                continue
            case _:
                yield event


def _place(event: Event) -> tuple[str, int]:
    """Return which block an event belongs to, of those beside each other."""
    match event:
        case CallStart(index) | CallArguments(index) | CallEnd(index):
            return "call", index
        case _:
            return type(event).__name__, 0
