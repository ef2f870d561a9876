"""The bodies of `/v1/messages` and what is below it as JSON Schema, for `/openapi.json`.

What decodes them says little of blocks, which are told apart by hand; so they are described here.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.api.anthropic.asked import MAX_USER_CHARS
from gateway.api.anthropic.batch_schemas import CUSTOM_ID
from gateway.api.anthropic.described_turns import (
    ANY,
    LEFT_ALONE,
    TEXTS,
    TOOLS,
    TURN,
    UNKNOWN,
    WITH_TOOLS,
    tool_choice,
)
from gateway.api.anthropic.messages import MAX_STOP_SEQUENCES
from gateway.api.anthropic.parameters import COUNT, MESSAGES
from gateway.api.openai.bounds import MAX_EFFORT_CHARS, MAX_MESSAGES, MAX_STOP_CHARS, NUMBERS
from gateway.api.openai.described import Served
from gateway.domain import Tier
from gateway.services.batches.batch_input import MAX_ITEMS

Schema = dict[str, Any]

_EMPTY: Final[Schema] = {"enum": [None, []]}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_FORM: Final = _or_null(
    {
        "type": "object",
        "properties": {"type": {"const": "json_schema"}, "schema": {"type": "object"}},
        "required": ["type", "schema"],
        "additionalProperties": UNKNOWN,
    }
)
_DISPLAY: Final[Schema] = {"enum": [None, "summarized", "omitted"]}


def _thinking(*kinds: str, needs_budget: bool = False) -> Schema:
    budget: Schema = {"type": "integer", "minimum": 1}
    return {
        "type": "object",
        "properties": {
            "type": {"enum": [*kinds]},
            "display": _DISPLAY,
            "budget_tokens": budget if needs_budget else _or_null(budget),
        },
        "required": ["type", "budget_tokens"] if needs_budget else ["type"],
        "additionalProperties": False,
    }


_FIELDS: Final[Schema] = {
    "messages": {"type": "array", "items": TURN, "minItems": 1, "maxItems": MAX_MESSAGES},
    "system": _or_null(TEXTS),
    "thinking": {
        "anyOf": [
            _thinking("enabled", needs_budget=True),
            _thinking("adaptive", "disabled", "between_tools"),
            UNKNOWN,
        ]
    },
    "output_config": _or_null(
        {
            "type": "object",
            "properties": {
                "effort": _or_null({"type": "string", "maxLength": MAX_EFFORT_CHARS}),
                "format": _FORM,
            },
            "additionalProperties": UNKNOWN,
        }
    ),
    "output_format": _FORM,
    "tools": TOOLS,
    "mcp_servers": _EMPTY,
    "context_management": UNKNOWN,
    "cache_control": ANY,
    "speed": ANY,
    "user_profile_id": ANY,
    "workspace_id": ANY,
    "stream": _or_null({"type": "boolean"}),
    "stop_sequences": _or_null(
        {
            "type": "array",
            "maxItems": MAX_STOP_SEQUENCES,
            "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS},
        }
    ),
    "metadata": _or_null(
        {
            "type": "object",
            "properties": {"user_id": _or_null({"type": "string", "maxLength": MAX_USER_CHARS})},
            "additionalProperties": False,
        }
    ),
    "service_tier": {"enum": [None, "auto", "standard_only", *sorted(Tier)]},
    "container": UNKNOWN,
    "diagnostics": ANY,
    "inference_geo": ANY,
}


def describe_messages(components: dict[str, Schema], served: Served) -> None:
    """Put the bodies of requests in place of what their types say of them."""
    # One that makes vectors answers no message.
    served = served.texts or served
    _describe_batch(components, served)
    for name, table, required in (
        ("MessagesRequest", MESSAGES, ["model", "messages", "max_tokens"]),
        ("CountTokensRequest", COUNT, ["model", "messages"]),
    ):
        known = _FIELDS | _of_model(served)
        components[name] = {
            "title": name,
            "type": "object",
            "properties": {each.name: _noted(known[each.name], each.note) for each in table}
            | ({"stream": known["stream"]} if name == "CountTokensRequest" else {}),
            "required": required,
            "additionalProperties": UNKNOWN,
            "anyOf": WITH_TOOLS if served.takes_tools else LEFT_ALONE,
        }


def _describe_batch(components: dict[str, Schema], served: Served) -> None:
    """Say what is looked at of a request before it runs: its id, the model, and whose turns."""
    params = {
        "type": "object",
        "properties": {
            "model": {"type": "string", "enum": list(served.names)},
            "messages": {"type": "array"},
            "stream": {"enum": [None, False]},
        },
        "required": ["model", "messages"],
    }
    request = {
        "type": "object",
        "properties": {
            "custom_id": {"type": "string", "pattern": CUSTOM_ID},
            "params": params,
        },
        "required": ["custom_id", "params"],
        "additionalProperties": False,
    }
    components["MessageBatchRequest"] = {
        "title": "MessageBatchRequest",
        "type": "object",
        "properties": {
            "requests": {
                "description": "each with a `custom_id` of its own; `params` as a message's",
                "type": "array",
                "items": request,
                "minItems": 1,
                "maxItems": MAX_ITEMS,
            }
        },
        "required": ["requests"],
        "additionalProperties": False,
    }


def _of_model(served: Served) -> Schema:
    def number(name: str) -> Schema:
        low, high = NUMBERS[name]
        return _or_null({"type": "number", "minimum": low, "maximum": high})

    most = served.max_model_len - 1
    return {
        "model": {"type": "string", "enum": list(served.names)},
        "tool_choice": tool_choice(takes_tools=served.takes_tools),
        "max_tokens": {"type": "integer", "minimum": 1, "maximum": most},
        "temperature": number("temperature"),
        "top_p": number("top_p"),
        "top_k": _or_null({"type": "integer", "minimum": -1, "maximum": served.vocab_size}),
    }


def _noted(schema: Schema, note: str) -> Schema:
    return schema | {"description": note} if note else schema
