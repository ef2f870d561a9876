"""What a response is asked beside its input: tools, form, thinking, log-probabilities.

They are checked in their own shapes and then read as a chat's are: the same ranges, the same
capabilities, the same defaults.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.api.openai.bounds import MAX_EFFORT_CHARS
from gateway.api.openai.parameters import unsupported
from gateway.api.openai.reading import Ignored
from gateway.api.openai.schemas import ChatRequest, JsonSchemaFormat, ResponseFormat
from gateway.api.responses.schemas import ResponsesRequest
from gateway.errors import InvalidRequest

LOGPROBS: Final = "message.output_text.logprobs"
ENCRYPTED: Final = "reasoning.encrypted_content"
FORMATS: Final = ("text", "json_object", "json_schema")

_TOOL_FIELDS: Final = ("type", "name", "description", "parameters", "strict")
_FORMAT_FIELDS: Final = ("type", "name", "description", "schema", "strict")
_REASONING_FIELDS: Final = ("effort", "summary", "generate_summary", "context", "mode")


def as_chat(body: ResponsesRequest, ignored: Ignored) -> ChatRequest:
    """Say the same as a chat would. Raises: `InvalidRequest`."""
    is_scored = _is_scored(body, ignored)
    if body.top_logprobs and not is_scored:
        raise InvalidRequest(
            f"'top_logprobs' needs 'include' with '{LOGPROBS}'.", param="top_logprobs"
        )
    _check_stream_options(body)
    return ChatRequest(
        model=body.model,
        messages=[],
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        logprobs=is_scored,
        top_logprobs=body.top_logprobs if is_scored else None,
        tools=[_nested(index, tool) for index, tool in enumerate(body.tools or [])],
        tool_choice=_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_format(body.text or {}, ignored),
        reasoning_effort=_effort(body.reasoning or {}, ignored),
        cache_salt=body.cache_salt,
    )


def _is_scored(body: ResponsesRequest, ignored: Ignored) -> bool:
    for name in body.include or ():
        if name == ENCRYPTED:
            ignored.add(f"include.{ENCRYPTED}")
        elif name != LOGPROBS:
            raise unsupported("include")
    return LOGPROBS in (body.include or ())


def _check_stream_options(body: ResponsesRequest) -> None:
    options = body.stream_options
    if options is None:
        return
    for name in ("include_usage", "continuous_usage_stats"):
        if getattr(options, name):
            raise unsupported(f"stream_options.{name}")


def _nested(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    """Nest a tool as chats do, which check the function in it."""
    where = f"tools[{index}]"
    if not isinstance(tool.get("type"), str):
        raise InvalidRequest("A tool has a 'type'.", param=f"{where}.type")
    if tool["type"] != "function":
        raise unsupported(f"{where}.type")
    _check_fields(tool, _TOOL_FIELDS, where)
    function = {name: tool[name] for name in _TOOL_FIELDS[1:] if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if not isinstance(choice, dict):
        return choice
    kind = choice.get("type")
    if kind == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if kind == "allowed_tools":
        named = choice.get("tools")
        tools = [_choice(one) if isinstance(one, dict) else one for one in named or ()]
        allowed = {"mode": choice.get("mode"), "tools": tools}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    if isinstance(kind, str):
        raise unsupported("tool_choice.type")
    return choice


def _format(text: dict[str, Any], ignored: Ignored) -> ResponseFormat | None:
    _check_fields(text, ("format", "verbosity"), "text")
    if text.get("verbosity") is not None:
        ignored.add("text.verbosity")
    asked = text.get("format")
    if asked is None:
        return None
    kind = asked.get("type") if isinstance(asked, dict) else None
    if kind not in FORMATS:
        raise InvalidRequest(
            f"'text.format.type' must be one of {', '.join(FORMATS)}.", param="text.format.type"
        )
    _check_fields(asked, _FORMAT_FIELDS if kind == "json_schema" else ("type",), "text.format")
    if kind != "json_schema":
        return ResponseFormat(kind)
    name, schema = asked.get("name"), asked.get("schema")
    if not isinstance(name, str):
        raise InvalidRequest("A schema has a 'name'.", param="text.format.name")
    if not isinstance(schema, dict):
        raise InvalidRequest("A form of this type has a 'schema'.", param="text.format.schema")
    for field, of in (("description", str), ("strict", bool)):
        if not isinstance(asked.get(field), of | None):
            raise InvalidRequest(
                f"'text.format.{field}' is of another type.", param=f"text.format.{field}"
            )
    return ResponseFormat(kind, JsonSchemaFormat(name, schema))


def _effort(reasoning: dict[str, Any], ignored: Ignored) -> str | None:
    _check_fields(reasoning, _REASONING_FIELDS, "reasoning")
    for name in _REASONING_FIELDS[1:]:
        if reasoning.get(name) is not None:
            if not isinstance(reasoning[name], str):
                raise InvalidRequest(f"'reasoning.{name}' is a text.", param=f"reasoning.{name}")
            ignored.add(f"reasoning.{name}")
    effort = reasoning.get("effort")
    if effort is not None and not (isinstance(effort, str) and len(effort) <= MAX_EFFORT_CHARS):
        raise InvalidRequest(
            f"'reasoning.effort' is a text of up to {MAX_EFFORT_CHARS} characters.",
            param="reasoning.effort",
        )
    return effort


def _check_fields(given: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in sorted(given.keys() - set(known)):
        if given[name] is not None:
            raise InvalidRequest(
                f"Unknown field: {name[:64]}.",
                param=f"{where}.{name[:64]}",
                code="unknown_parameter",
            )
