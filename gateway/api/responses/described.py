"""The bodies of `/v1/responses` as JSON Schema, for `/openapi.json`.

What decodes them says little of items, tools and settings, which are told apart by hand; so they
are described here.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.api.openai.bounds import (
    MAX_CALL_ID_CHARS,
    MAX_EFFORT_CHARS,
    MAX_LOGPROBS,
    MAX_METADATA_NAME_CHARS,
    MAX_METADATA_PAIRS,
    MAX_METADATA_VALUE_CHARS,
    MAX_SALT_CHARS,
    MAX_TOOLS,
    NUMBERS,
    TOOL_NAME,
)
from gateway.api.openai.described import Served
from gateway.api.openai.parameters import Fate
from gateway.api.responses.asked import ENCRYPTED, LOGPROBS
from gateway.api.responses.ids import RESPONSE_ID
from gateway.api.responses.input_items import MAX_ITEMS, ROLES
from gateway.api.responses.parameters import RESPONSES
from gateway.api.responses.schemas import FunctionCall, OutputMessage, ReasoningItem
from gateway.domain import Tier

Schema = dict[str, Any]

# What asks for nothing, whatever its name.
_UNKNOWN: Final[Schema] = {"type": "null"}
_ANY: Final[Schema] = {}
_TEXT_FIELD: Final[Schema] = {"type": "string"}
_NAME: Final[Schema] = {"type": "string", "pattern": f"^{TOOL_NAME}$"}
_CALL_ID: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": MAX_CALL_ID_CHARS}
_BOOLEAN: Final[Schema] = {"type": ["boolean", "null"]}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(required: dict[str, Schema], **optional: Schema) -> Schema:
    return {
        "type": "object",
        "properties": required | optional,
        "required": [*required],
        "additionalProperties": _UNKNOWN,
    }


def _parts(*kinds: str) -> Schema:
    part = _object(
        {"type": {"enum": [*kinds]}, "text": _TEXT_FIELD},
        annotations=_ANY,
        logprobs=_ANY,
        prompt_cache_breakpoint=_ANY,
        # Taken beside a text, as clients send back what they were sent.
        refusal=_ANY,
    )
    return {"type": "array", "items": part}


_SAID: Final[Schema] = {"anyOf": [_TEXT_FIELD, _parts("input_text", "output_text")]}
_ITEMS: Final[list[Schema]] = [
    _object(
        {"role": {"enum": [*ROLES]}, "content": _SAID},
        type={"const": "message"},
        id=_ANY,
        status=_ANY,
        phase=_ANY,
    ),
    _object(
        {
            "type": {"const": "function_call"},
            "call_id": _CALL_ID,
            "name": _NAME,
            "arguments": _TEXT_FIELD,
        },
        id=_ANY,
        status=_ANY,
    ),
    _object(
        {"type": {"const": "function_call_output"}, "call_id": _CALL_ID, "output": _SAID},
        id=_ANY,
        status=_ANY,
        name=_ANY,
    ),
    _object(
        {"type": {"const": "reasoning"}, "summary": _parts("summary_text")},
        content=_or_null(_parts("reasoning_text")),
        encrypted_content=_ANY,
        id=_ANY,
        status=_ANY,
    ),
]
_TOOL: Final[Schema] = _object(
    {"type": {"const": "function"}, "name": _NAME},
    description={"type": ["string", "null"]},
    parameters={"type": ["object", "null"]},
    strict=_BOOLEAN,
)
_NAMED: Final[Schema] = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "name": _NAME},
    "required": ["type", "name"],
}
_ALLOWED: Final[Schema] = {
    "type": "object",
    "properties": {
        "type": {"const": "allowed_tools"},
        "mode": {"enum": ["auto", "required"]},
        "tools": {"type": "array", "items": _NAMED, "minItems": 1},
    },
    "required": ["type", "mode", "tools"],
}
_FORMAT: Final[Schema] = {
    "anyOf": [
        _object({"type": {"enum": ["text", "json_object"]}}),
        _object(
            {"type": {"const": "json_schema"}, "name": _TEXT_FIELD, "schema": {"type": "object"}},
            description={"type": ["string", "null"]},
            strict=_BOOLEAN,
        ),
    ]
}
_METADATA: Final[Schema] = {
    "type": "object",
    "maxProperties": MAX_METADATA_PAIRS,
    "propertyNames": {"maxLength": MAX_METADATA_NAME_CHARS},
    "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_VALUE_CHARS},
}
_SETTING: Final[Schema] = {"type": ["string", "null"]}
_FIELDS: Final[Schema] = {
    "input": {
        "anyOf": [
            _TEXT_FIELD,
            {"type": "array", "items": {"anyOf": _ITEMS}, "minItems": 1, "maxItems": MAX_ITEMS},
        ]
    },
    "instructions": _SETTING,
    "stream": _BOOLEAN,
    "stream_options": _or_null(_object({}, include_obfuscation={"type": "boolean"})),
    "previous_response_id": _or_null({"type": "string", "pattern": RESPONSE_ID}),
    "store": _BOOLEAN,
    "metadata": _or_null(_METADATA),
    "tools": _or_null({"type": "array", "items": _TOOL, "maxItems": MAX_TOOLS}),
    "parallel_tool_calls": _BOOLEAN,
    "text": _or_null(_object({}, format=_or_null(_FORMAT), verbosity=_ANY)),
    "reasoning": _or_null(
        _object(
            {},
            effort=_or_null({"type": "string", "maxLength": MAX_EFFORT_CHARS}),
            summary=_SETTING,
            generate_summary=_SETTING,
            context=_SETTING,
            mode=_SETTING,
        )
    ),
    "include": _or_null({"type": "array", "items": {"enum": [LOGPROBS, ENCRYPTED]}}),
    "top_logprobs": _or_null({"type": "integer", "minimum": 0, "maximum": MAX_LOGPROBS}),
    "service_tier": {"enum": [None, "auto", *sorted(Tier)]},
    "priority": {"type": ["integer", "null"]},
    "cache_salt": _or_null({"type": "string", "minLength": 1, "maxLength": MAX_SALT_CHARS}),
    "add_special_tokens": _BOOLEAN,
    "user": _ANY,
    "safety_identifier": _SETTING,
    "prompt_cache_key": _SETTING,
    "prompt_cache_retention": _ANY,
    "prompt_cache_options": _ANY,
    "max_tool_calls": {"type": ["integer", "null"]},
}
# What an answer is made of: no field has one of these types by itself.
ITEM_TYPES: Final = (OutputMessage, FunctionCall, ReasoningItem)
_OUTPUT: Final[Schema] = {
    "type": "array",
    "items": {"anyOf": [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in ITEM_TYPES]},
}


def describe_responses(components: dict[str, Schema], served: Served) -> None:
    """Put the body of a request in place of what its type says of it."""
    # One that makes vectors answers nothing.
    served = served.texts or served
    fields = {
        each.name: {"enum": list(each.neutral)} for each in RESPONSES if each.fate is Fate.REFUSED
    }
    fields |= _FIELDS | _of_model(served)
    components["ResponsesRequest"] = {
        "title": "ResponsesRequest",
        "type": "object",
        "properties": {each.name: _noted(fields[each.name], each.note) for each in RESPONSES},
        "required": ["model", "input"],
        "additionalProperties": _UNKNOWN,
        "allOf": [{"anyOf": _tools(served)}, {"anyOf": _SCORED}],
    }
    components["ResponseObject"]["properties"]["output"] = _OUTPUT
    components["ResponseObject"]["properties"]["tools"] = {"type": "array"}
    components["ResponseObject"]["properties"]["text"] = {"type": "object"}


# Which parameters go with which.
_SCORED: Final[list[Schema]] = [
    {"properties": {"top_logprobs": {"enum": [None, 0]}}},
    {
        "properties": {"include": {"type": "array", "contains": {"const": LOGPROBS}}},
        "required": ["include"],
    },
]


def _tools(served: Served) -> list[Schema]:
    """Say that tools go with `none` alone where no model knows tools."""
    if served.takes_tools:
        return [{}]
    return [
        {"properties": {"tool_choice": {"const": "none"}}, "required": ["tool_choice"]},
        {"properties": {"tools": {"enum": [None, []]}}},
    ]


def _of_model(served: Served) -> Schema:
    def number(name: str) -> Schema:
        low, high = NUMBERS[name]
        return _or_null({"type": "number", "minimum": low, "maximum": high})

    choices: list[Schema] = [{"enum": [None, "none", "auto"]}]
    if served.takes_tools:
        choices = [{"enum": [None, "none", "auto", "required"]}, _NAMED, _ALLOWED]
    most = served.max_model_len - 1
    return {
        "model": {"type": "string", "enum": list(served.names)},
        "max_output_tokens": _or_null({"type": "integer", "minimum": 1, "maximum": most}),
        "temperature": number("temperature"),
        "top_p": number("top_p"),
        "tool_choice": {"anyOf": choices},
    }


def _noted(schema: Schema, note: str) -> Schema:
    return schema | {"description": note} if note else schema
