"""The calls in a chat's history, and whose result a tool's message is: checked."""

from __future__ import annotations

import re
from typing import Any, Final

from gateway.api.openai.bounds import MAX_CALL_ID_CHARS, MAX_TOOLS, TOOL_NAME
from gateway.api.openai.reading import Ignored
from gateway.api.openai.schemas import ChatMessage
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.services.inference import Call

_NAME: Final = re.compile(TOOL_NAME, re.ASCII)
_CALL_FIELDS: Final = frozenset(["id", "type", "function", "index"])
_FUNCTION_FIELDS: Final = frozenset(["name", "arguments"])


def history_calls(index: int, message: ChatMessage, ignored: Ignored) -> tuple[Call, ...]:
    """Return the calls of an assistant's message. Raises: `InvalidRequest`.

    Arguments may be no JSON, as of a call that was cut off. What other servers add to a call is
    named in `ignored`.
    """
    if not message.tool_calls:
        return ()
    where = f"messages[{index}].tool_calls"
    if message.role != "assistant":
        raise InvalidRequest("Only an assistant makes calls.", param=where)
    if len(message.tool_calls) > MAX_TOOLS:
        raise InvalidRequest(f"A message has up to {MAX_TOOLS} calls.", param=where)
    calls = enumerate(message.tool_calls)
    return tuple(_call(f"{where}[{number}]", call, ignored) for number, call in calls)


def result_of(index: int, message: ChatMessage) -> str | None:
    """Return the id of the call whose result a message is. Raises: `InvalidRequest`."""
    call_id, where = message.tool_call_id, f"messages[{index}].tool_call_id"
    if message.role != "tool":
        if call_id is not None:
            raise InvalidRequest("Only a tool's message has the id of a call.", param=where)
        return None
    if call_id is None or not 1 <= len(call_id) <= MAX_CALL_ID_CHARS:
        raise InvalidRequest(
            f"A tool's message needs the id of its call, of up to {MAX_CALL_ID_CHARS} characters.",
            param=where,
        )
    return call_id


def _call(where: str, call: dict[str, Any], ignored: Ignored) -> Call:
    if call.get("type", "function") != "function":
        raise UnsupportedParameter(
            "Only calls of the type 'function' are supported.", param=f"{where}.type"
        )
    call_id, function = call.get("id"), call.get("function")
    if not isinstance(call_id, str) or not 1 <= len(call_id) <= MAX_CALL_ID_CHARS:
        raise InvalidRequest(
            f"A call needs an id of up to {MAX_CALL_ID_CHARS} characters.", param=f"{where}.id"
        )
    if not isinstance(function, dict):
        raise InvalidRequest("A call needs a function.", param=f"{where}.function")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            "A function has a name of 1 to 64 letters, digits, '_' and '-'.",
            param=f"{where}.function.name",
        )
    if not isinstance(arguments, str):
        raise InvalidRequest(
            "A function's arguments are JSON as text.", param=f"{where}.function.arguments"
        )
    _note(call, _CALL_FIELDS, "messages.tool_calls", ignored)
    _note(function, _FUNCTION_FIELDS, "messages.tool_calls.function", ignored)
    return Call(call_id, name, arguments or "{}")


def _note(given: dict[str, Any], known: frozenset[str], under: str, ignored: Ignored) -> None:
    for name in given.keys() - known:
        if given[name] is not None:
            ignored.add(f"{under}.{name}")
