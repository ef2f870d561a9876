"""The items of an input: checked, kept as they are listed again, and made turns for a template.

A message, a call, the result of a call, or what was thought before. What is kept has ids of ours,
texts as parts, and nothing that a client added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from gateway.api.openai.bounds import MAX_CALL_ID_CHARS, MAX_MESSAGES, TOOL_NAME
from gateway.api.openai.parameters import unsupported
from gateway.api.openai.reading import Ignored
from gateway.api.responses.ids import input_name
from gateway.errors import InvalidRequest
from gateway.services.inference import Call, Message

MAX_ITEMS: Final = MAX_MESSAGES
ROLES: Final = ("user", "assistant", "system", "developer")
# Of turns in all that a chain may come to: each is rendered.
MAX_TURNS: Final = 4096

Item = dict[str, Any]

_NAME: Final = re.compile(TOOL_NAME, re.ASCII)
_OF_PARTS: Final = {
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "summary_text": "text",
    "reasoning_text": "text",
    "text": "text",
}
_FIELDS: Final = {
    "message": frozenset(["type", "role", "content", "id", "status", "phase"]),
    "function_call": frozenset(["type", "call_id", "name", "arguments", "id", "status"]),
    "function_call_output": frozenset(["type", "call_id", "output", "id", "status", "name"]),
    "reasoning": frozenset(["type", "summary", "content", "encrypted_content", "id", "status"]),
}
_PART_FIELDS: Final = frozenset(
    ["type", "text", "refusal", "annotations", "logprobs", "prompt_cache_breakpoint"]
)


class InputItems:
    """Read an input: `read` checks it once, and what it returns is what `turns_of` takes."""

    def __init__(self, ignored: Ignored, *, ignores_unknown: bool) -> None:
        self._ignored = ignored
        self._ignores_unknown = ignores_unknown

    def read(self, given: str | list[Item], request_id: str) -> list[Item]:
        """Return the items as they are kept. Raises: `InvalidRequest`."""
        if isinstance(given, str):
            return [_message(input_name("msg", request_id, 0), "user", given)]
        if not 1 <= len(given) <= MAX_ITEMS:
            raise InvalidRequest(
                f"'input' must hold 1 to {MAX_ITEMS} items, not {len(given)}.", param="input"
            )
        return [
            self._item(f"input[{index}]", item, request_id, index)
            for index, item in enumerate(given)
        ]

    def _item(self, where: str, item: Item, request_id: str, index: int) -> Item:
        kind = item.get("type", "message" if "role" in item else None)
        if kind == "message":
            kept = self._said(where, item, input_name("msg", request_id, index))
        elif kind == "function_call":
            kept = self._call(where, item, input_name("fc", request_id, index))
        elif kind == "function_call_output":
            kept = self._result(where, item, input_name("fco", request_id, index))
        elif kind == "reasoning":
            kept = self._thought(where, item, input_name("rs", request_id, index))
        elif isinstance(kind, str):
            raise unsupported(f"{where}.type")
        else:
            raise InvalidRequest("An item has a 'type' or a 'role'.", param=f"{where}.type")
        self._unknown(where, item, _FIELDS[kind])
        return kept

    def _said(self, where: str, item: Item, name: str) -> Item:
        role = item.get("role")
        if role not in ROLES:
            raise InvalidRequest(
                f"Unknown role; choose one of {', '.join(ROLES)}.", param=f"{where}.role"
            )
        if item.get("phase") is not None:
            self._ignored.add("input.phase")
        return _message(name, role, self._text(f"{where}.content", item.get("content")))

    def _call(self, where: str, item: Item, name: str) -> Item:
        called, arguments = item.get("name"), item.get("arguments")
        if not isinstance(called, str) or not _NAME.fullmatch(called):
            raise InvalidRequest(
                "A function has a name of 1 to 64 letters, digits, '_' and '-'.",
                param=f"{where}.name",
            )
        if not isinstance(arguments, str):
            raise InvalidRequest(
                "A function's arguments are JSON as text.", param=f"{where}.arguments"
            )
        return {
            "id": name,
            "call_id": _call_id(where, item),
            "name": called,
            "arguments": arguments,
            "status": "completed",
            "type": "function_call",
        }

    def _result(self, where: str, item: Item, name: str) -> Item:
        return {
            "id": name,
            "call_id": _call_id(where, item),
            "output": self._text(f"{where}.output", item.get("output")),
            "status": "completed",
            "type": "function_call_output",
        }

    def _thought(self, where: str, item: Item, name: str) -> Item:
        if item.get("encrypted_content") is not None:
            self._ignored.add("input.encrypted_content")
        text = ""
        for field in ("summary", "content"):
            # What was thought stands in one of them, or in both.
            if item.get(field) is not None:
                text = self._text(f"{where}.{field}", item[field]) or text
        content = [{"text": text, "type": "reasoning_text"}] if text else []
        return {
            "id": name,
            "content": content,
            "summary": [],
            "status": "completed",
            "type": "reasoning",
        }

    def _text(self, where: str, content: Any) -> str:
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise InvalidRequest("It is a text, or a list of text parts.", param=where)
        parts = enumerate(content)
        return "".join(self._part(f"{where}[{number}]", part) for number, part in parts)

    def _part(self, where: str, part: Any) -> str:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise InvalidRequest("A part has a 'type'.", param=f"{where}.type")
        if kind not in _OF_PARTS:
            raise unsupported(f"{where}.type")
        name = _OF_PARTS[kind]
        text = part.get(name)
        if not isinstance(text, str):
            raise InvalidRequest(f"A part of this type has a '{name}'.", param=f"{where}.{name}")
        if len(part) > 2:
            if part.get("prompt_cache_breakpoint") is not None:
                self._ignored.add("input.content.prompt_cache_breakpoint")
            self._unknown(where, part, _PART_FIELDS)
        return text

    def _unknown(self, where: str, given: Item, known: frozenset[str]) -> None:
        for name in sorted(given.keys() - known):
            if given[name] is None:
                continue
            if not self._ignores_unknown:
                raise InvalidRequest(
                    f"Unknown field: {name[:64]}.",
                    param=f"{where}.{name[:64]}",
                    code="unknown_parameter",
                )
            self._ignored.add(f"input.{name}")


def turns_of(items: Iterable[Item], *, sees_reasoning: bool) -> Iterator[Message]:
    """Make items turns: calls belong to what was said before them, as does what was thought."""
    turn: Message | None = None
    # Of the turn: to add each to the message itself would copy all before it.
    calls: list[Call] = []
    thought: str | None = None
    for item in items:
        kind = item["type"]
        if kind == "function_call":
            call = Call(item["call_id"], item["name"], item["arguments"] or "{}")
            if turn is None or turn.role != "assistant" or thought is not None:
                if turn is not None:
                    yield replace(turn, calls=tuple(calls))
                turn, thought, calls = Message("assistant", "", reasoning=thought), None, []
            calls.append(call)
            continue
        if kind == "reasoning":
            if sees_reasoning:
                thought = _joined(item) or None
            continue
        if turn is not None:
            yield replace(turn, calls=tuple(calls))
            calls = []
        if kind == "function_call_output":
            turn = Message("tool", item["output"], call_id=item["call_id"])
        else:
            role = "system" if item["role"] == "developer" else item["role"]
            reasoning = thought if role == "assistant" else None
            turn = Message(role, _joined(item), reasoning=reasoning)
        thought = None
    if turn is not None:
        yield replace(turn, calls=tuple(calls))


def _joined(item: Item) -> str:
    return "".join(part["text"] for part in item["content"])


def _message(name: str, role: str, text: str) -> Item:
    part: Item = {"text": text, "type": "input_text"}
    if role == "assistant":
        part = {"text": text, "type": "output_text", "annotations": []}
    return {"id": name, "content": [part], "role": role, "status": "completed", "type": "message"}


def _call_id(where: str, item: Item) -> str:
    call_id = item.get("call_id")
    if not isinstance(call_id, str) or not 1 <= len(call_id) <= MAX_CALL_ID_CHARS:
        raise InvalidRequest(
            f"It needs the id of the call, of up to {MAX_CALL_ID_CHARS} characters.",
            param=f"{where}.call_id",
        )
    return call_id
