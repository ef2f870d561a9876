"""The blocks of one turn, as the messages that a template is given.

An assistant's turn is one message, its text put together, with its calls. A user's is one for what
is said before results, one for each result, and one for what is said behind them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from gateway.api.anthropic.parameters import BLOCKS
from gateway.api.anthropic.schemas import MessageParam
from gateway.api.openai.bounds import LONG_TOOL_NAME, MAX_CALL_ID_CHARS, MAX_TOOLS
from gateway.api.openai.parameters import Fates, unsupported
from gateway.api.openai.reading import Ignored
from gateway.errors import InvalidRequest
from gateway.services.inference import Call, Message

ROLES: Final = ("user", "assistant", "system")
# What may stand in whose turns.
KINDS: Final = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
    "system": ("text",),
}
Block = dict[str, Any]
_NAME: Final = re.compile(LONG_TOOL_NAME, re.ASCII)
_FATES: Final = {kind: Fates(table) for kind, table in BLOCKS.items()}
# Put before the content of a result that is an error: templates have no word for one.
_ERROR: Final = "Error: "


@dataclass(slots=True)
class _Said:
    """Gather what an assistant's turn holds."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


class BlockReader:
    """Read the turns of one request."""

    def __init__(
        self, ignored: Ignored, *, ignores_unknown: bool, takes_thoughts: bool = False
    ) -> None:
        self._ignored = ignored
        self._ignores_unknown = ignores_unknown
        self._takes_thoughts = takes_thoughts

    def messages(self, index: int, turn: MessageParam) -> Iterator[Message]:
        """Yield the messages of a turn, one at least. Raises: `InvalidRequest`."""
        if turn.role not in ROLES:
            raise InvalidRequest(
                f"Unknown role; choose one of {', '.join(ROLES)}.", param=f"messages[{index}].role"
            )
        where = f"messages[{index}].content"
        if isinstance(turn.content, str):
            yield Message(turn.role, turn.content)
        elif turn.role == "assistant":
            yield self._assistant(where, turn.content)
        else:
            yield from self._user(where, turn.role, turn.content)

    def texts(self, where: str, content: str | list[Block]) -> Iterator[str]:
        """Yield the texts of a system prompt or of a result. Raises: `InvalidRequest`."""
        if isinstance(content, str):
            yield content
            return
        for at, _, block in self._blocks(where, content, ("text",)):
            yield _text(at, block)

    def _assistant(self, where: str, content: list[Block]) -> Message:
        said = _Said()
        for at, kind, block in self._blocks(where, content, KINDS["assistant"]):
            if kind == "text":
                said.texts.append(_text(at, block))
            elif kind == "tool_use":
                said.calls.append(_call(at, block))
            elif kind == "thinking":
                self._think(at, block, said)
            else:
                self._ignored.add(f"messages.content.{kind}")
        if len(said.calls) > MAX_TOOLS:
            raise InvalidRequest(f"A turn has up to {MAX_TOOLS} calls.", param=where)
        thought = "\n\n".join(said.thoughts) or None
        text = "".join(said.texts)
        return Message("assistant", text, calls=tuple(said.calls), reasoning=thought)

    def _think(self, where: str, block: Block, said: _Said) -> None:
        """Hand a thought to a template that looks at it, else name it."""
        thought, signature = block.get("thinking"), block.get("signature", "")
        if not isinstance(thought, str) or not isinstance(signature, str):
            raise InvalidRequest(
                "A thinking block has a 'thinking' and a 'signature', both texts.", param=where
            )
        if thought and not self._takes_thoughts:
            self._ignored.add("messages.content.thinking")
        elif thought:
            said.thoughts.append(thought)

    def _user(self, where: str, role: str, content: list[Block]) -> Iterator[Message]:
        texts: list[str] = []
        has_any = False
        for at, kind, block in self._blocks(where, content, KINDS[role]):
            if kind == "text":
                texts.append(_text(at, block))
                continue
            if texts:
                yield Message(role, "".join(texts))
                texts.clear()
            has_any = True
            yield self._result(at, block)
        if texts or not has_any:
            yield Message(role, "".join(texts))

    def _result(self, where: str, block: Block) -> Message:
        call_id = _id(f"{where}.tool_use_id", block.get("tool_use_id"))
        content, is_error = block.get("content"), block.get("is_error")
        if not isinstance(content, str | list | None):
            raise InvalidRequest(
                "A result's content is a text or text blocks.", param=f"{where}.content"
            )
        if not isinstance(is_error, bool | None):
            raise InvalidRequest("'is_error' is true or false.", param=f"{where}.is_error")
        text = "".join(self.texts(f"{where}.content", content or ""))
        return Message("tool", _ERROR + text if is_error else text, call_id=call_id)

    def _blocks(
        self, where: str, content: list[Any], kinds: tuple[str, ...]
    ) -> Iterator[tuple[str, str, Block]]:
        """Yield each block with its place and kind. Raises: `InvalidRequest` for all others."""
        for number, block in enumerate(content):
            at = f"{where}[{number}]"
            kind = block.get("type") if isinstance(block, dict) else None
            if not isinstance(kind, str):
                raise InvalidRequest("A block has a 'type'.", param=f"{at}.type")
            if kind not in kinds:
                raise unsupported(f"{at}.type")
            if len(block) > 2:
                self._note(at, kind, block)
            yield at, kind, block

    def _note(self, where: str, kind: str, block: Block) -> None:
        """Name what of a block has no effect. Raises: `InvalidRequest` for what nobody knows."""
        fates = _FATES[kind]
        for name in fates.taken_of(block):
            self._ignored.add(f"messages.content.{name}")
        for name in sorted(block.keys() - fates.names - {"type"}):
            if block[name] is None:
                continue
            if not self._ignores_unknown:
                raise InvalidRequest(
                    f"Unknown field in a {kind} block: {name[:64]}.",
                    param=f"{where}.{name[:64]}",
                    code="unknown_parameter",
                )
            self._ignored.add(f"messages.content.{name}")


def _text(where: str, block: Block) -> str:
    text = block.get("text")
    if not isinstance(text, str):
        raise InvalidRequest("A text block has a 'text'.", param=f"{where}.text")
    return text


def _call(where: str, block: Block) -> Call:
    call_id, name, given = (
        _id(f"{where}.id", block.get("id")),
        block.get("name"),
        block.get("input"),
    )
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            "A tool has a name of 1 to 128 letters, digits, '_' and '-'.", param=f"{where}.name"
        )
    if not isinstance(given, dict):
        raise InvalidRequest("A call's input is an object.", param=f"{where}.input")
    written = block.get("x_input_text")
    if not isinstance(written, str | None):
        raise InvalidRequest("'x_input_text' is a text.", param=f"{where}.x_input_text")
    if written is not None and not given:
        return Call(call_id, name, written)
    return Call(call_id, name, msgspec.json.encode(given).decode())


def _id(where: str, value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_CALL_ID_CHARS:
        raise InvalidRequest(
            f"A call has an id of up to {MAX_CALL_ID_CHARS} characters.", param=where
        )
    return value
