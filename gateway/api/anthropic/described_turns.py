"""Turns, their blocks and tools as JSON Schema, for `/openapi.json`."""

from __future__ import annotations

from typing import Any, Final

from gateway.api.anthropic.blocks import KINDS
from gateway.api.openai.bounds import LONG_TOOL_NAME, MAX_CALL_ID_CHARS, MAX_TOOLS

Schema = dict[str, Any]

# What asks for nothing, whatever its name.
UNKNOWN: Final[Schema] = {"type": "null"}
ANY: Final[Schema] = {}
_TEXT: Final[Schema] = {"type": "string"}
_TEXT_OR_NULL: Final[Schema] = {"type": ["string", "null"]}
_FLAG: Final[Schema] = {"type": ["boolean", "null"]}
_LIST: Final[Schema] = {"type": ["array", "null"]}
_ID: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": MAX_CALL_ID_CHARS}
_NAME: Final[Schema] = {"type": "string", "pattern": f"^{LONG_TOOL_NAME}$"}


def _object(properties: Schema, *required: str) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": UNKNOWN,
    }


def _block(kind: str, properties: Schema, *required: str) -> Schema:
    return _object({"type": {"const": kind}} | properties, "type", *required)


_TEXT_BLOCK: Final = _block("text", {"text": _TEXT, "cache_control": ANY, "citations": ANY}, "text")
TEXTS: Final[Schema] = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT_BLOCK}]}
_BLOCKS: Final = {
    "text": _TEXT_BLOCK,
    "tool_use": _block(
        "tool_use",
        {
            "id": _ID,
            "name": _NAME,
            "input": {"type": "object"},
            "x_input_text": _TEXT_OR_NULL,
            "caller": ANY,
            "cache_control": ANY,
            "toolset_name": ANY,
        },
        "id",
        "name",
        "input",
    ),
    "tool_result": _block(
        "tool_result",
        {
            "tool_use_id": _ID,
            "content": {"anyOf": [*TEXTS["anyOf"], UNKNOWN]},
            "is_error": _FLAG,
            "cache_control": ANY,
            "toolset_name": ANY,
        },
        "tool_use_id",
    ),
    "thinking": _block("thinking", {"thinking": _TEXT, "signature": _TEXT}, "thinking"),
    "redacted_thinking": _block("redacted_thinking", {"data": ANY}),
}


def _turn(role: str) -> Schema:
    blocks = {"type": "array", "items": {"anyOf": [_BLOCKS[kind] for kind in KINDS[role]]}}
    content = {"anyOf": [_TEXT, blocks]}
    return _object({"role": {"const": role}, "content": content}, "role", "content")


TURN: Final[Schema] = {"anyOf": [_turn(role) for role in KINDS]}

_TOOL: Final = _object(
    {
        "name": _NAME,
        "input_schema": {"type": "object"},
        "description": _TEXT_OR_NULL,
        "type": {"enum": [None, "custom"]},
        "strict": _FLAG,
        "cache_control": ANY,
        "eager_input_streaming": _FLAG,
        "input_examples": _LIST,
        "defer_loading": _FLAG,
        "allowed_callers": {"enum": [None, [], ["direct"]]},
    },
    "name",
    "input_schema",
)
TOOLS: Final[Schema] = {
    "anyOf": [{"type": "array", "items": _TOOL, "maxItems": MAX_TOOLS}, UNKNOWN]
}


def tool_choice(*, takes_tools: bool) -> Schema:
    """Say which choices there are, where a model can be told of tools and where none can."""
    kinds = ["auto", "any", "none"] if takes_tools else ["auto", "none"]
    choice: Schema = {
        "type": "object",
        "properties": {"type": {"enum": kinds}, "disable_parallel_tool_use": _FLAG},
        "required": ["type"],
    }
    named = choice | {
        "properties": choice["properties"] | {"type": {"const": "tool"}, "name": _NAME},
        "required": ["type", "name"],
    }
    return {"anyOf": [choice, *([named] if takes_tools else []), UNKNOWN]}


# Where no model knows tools, they may be there to be left alone.
LEFT_ALONE: Final[list[Schema]] = [
    {"properties": {"tools": {"enum": [None, []]}}},
    {
        "properties": {
            "tool_choice": {
                "type": "object",
                "properties": {"type": {"const": "none"}},
                "required": ["type"],
            }
        },
        "required": ["tool_choice"],
    },
]
# What forces a call needs one to be there.
WITH_TOOLS: Final[list[Schema]] = [
    {
        "properties": {
            "tool_choice": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"type": {"enum": ["auto", "none"]}},
                        "required": ["type"],
                    },
                    UNKNOWN,
                ]
            }
        }
    },
    {"properties": {"tools": {"type": "array", "minItems": 1}}, "required": ["tools"]},
]
