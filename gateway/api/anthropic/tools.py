"""What a message says of tools, and which of them may or must be called.

Anthropic's objects become the ones that templates are given, which are OpenAI's. Tools that run on
Anthropic's own servers, or that only their models know, have a `type` of their own and no schema.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.api.anthropic.parameters import TOOL
from gateway.api.anthropic.schemas import MessagesFields
from gateway.api.openai.bounds import LONG_TOOL_NAME, MAX_TOOLS
from gateway.api.openai.parameters import Fates, unsupported
from gateway.api.openai.reading import Ignored
from gateway.api.openai.tools import Mode, Offer, Tool, held_to, name_of, offer_of, read_as
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.services.answers import Reading, new_call_id
from gateway.services.constraints import ConstraintSpec
from gateway.services.inference import ServedModel

_NAME: Final = re.compile(LONG_TOOL_NAME, re.ASCII)
_TOOL: Final = Fates(TOOL)
_MODES: Final = {
    "auto": Mode.AUTO,
    "any": Mode.REQUIRED,
    "tool": Mode.NAMED,
    "none": Mode.NONE,
}
_KINDS: Final = {str: "a text", dict: "an object", bool: "true or false", list: "a list"}
_FIELDS: Final = (
    ("description", str),
    ("strict", bool),
    ("defer_loading", bool),
    ("eager_input_streaming", bool),
    ("input_examples", list),
    ("allowed_callers", list),
)


@dataclass(frozen=True, slots=True)
class AskedTools:
    """Hold an offer, and whether an answer may make one call alone."""

    offer: Offer
    is_one: bool

    def reading(self, model: ServedModel) -> Reading | None:
        """Say how an answer is read; None: it is text and nothing else."""
        return read_as(model, self.offer, is_one=self.is_one, new_id=new_tool_use_id)

    def held(self, asked: ConstraintSpec | None, model: ServedModel) -> ConstraintSpec | None:
        """Return the form of an answer, as `openai.tools.held_to`."""
        where = "tools[{}].input_schema"
        return held_to(asked, model, self.offer, is_one=self.is_one, schema_param=where)


def requested_tools(
    body: MessagesFields, model: ServedModel, ignored: Ignored, *, ignores_unknown: bool
) -> AskedTools:
    """Read `tools` and `tool_choice`. Raises: `InvalidRequest`, `UnsupportedParameter`."""
    given = body.tools or []
    if len(given) > MAX_TOOLS:
        raise InvalidRequest(f"'tools' takes up to {MAX_TOOLS} tools.", param="tools")
    tools = [
        _tool(f"tools[{index}]", tool, ignored, ignores_unknown=ignores_unknown)
        for index, tool in enumerate(given)
    ]
    mode, offered, is_one = _choice(body.tool_choice, tools)
    offer = offer_of(mode, offered, model, ignored, strict="tools.strict")
    return AskedTools(offer, is_one or mode is Mode.NAMED)


def new_tool_use_id() -> str:
    """Make an id of a call, in Anthropic's words."""
    return f"toolu_{new_call_id().removeprefix('call_')}"


def _tool(where: str, tool: Any, ignored: Ignored, *, ignores_unknown: bool) -> Tool:
    """Check a tool and return it as templates are given it."""
    if not isinstance(tool, dict):
        raise InvalidRequest("A tool is an object.", param=where)
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise UnsupportedParameter(
            f"Only tools with an 'input_schema' of their own are taken, not '{str(kind)[:64]}'.",
            param=f"{where}.type",
        )
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            "A tool needs a name of 1 to 128 letters, digits, '_' and '-'.", param=f"{where}.name"
        )
    if not isinstance(schema, dict):
        raise InvalidRequest("A tool needs an 'input_schema'.", param=f"{where}.input_schema")
    for field, type_ in _FIELDS:
        if tool.get(field) is not None and not isinstance(tool[field], type_):
            raise InvalidRequest(
                f"'{field}' of a tool must be {_KINDS[type_]}.", param=f"{where}.{field}"
            )
    _note(where, tool, ignored, ignores_unknown=ignores_unknown)
    function = {"name": name, "parameters": schema}
    for field in ("description", "strict"):
        if tool.get(field) is not None:
            function[field] = tool[field]
    return {"type": "function", "function": function}


def _note(where: str, tool: dict[str, Any], ignored: Ignored, *, ignores_unknown: bool) -> None:
    """Name what has no effect. Raises: `InvalidRequest` for what nobody knows or does."""
    if tool.get("allowed_callers") not in (None, [], ["direct"]):
        raise unsupported(f"{where}.allowed_callers")
    for name in _TOOL.taken_of(tool):
        ignored.add(f"tools.{name}")
    for name in sorted(tool.keys() - _TOOL.names):
        if tool[name] is None:
            continue
        if not ignores_unknown:
            raise InvalidRequest(
                f"Unknown field in a tool: {name[:64]}.",
                param=f"{where}.{name[:64]}",
                code="unknown_parameter",
            )
        ignored.add(f"tools.{name}")


def _choice(
    choice: dict[str, Any] | None, tools: Sequence[Tool]
) -> tuple[Mode, Sequence[Tool], bool]:
    """Return the mode, the tools that may be called, and whether one call is to be all."""
    if choice is None:
        return Mode.AUTO, tools, False
    mode = _MODES.get(str(choice.get("type")))
    if mode is None:
        raise InvalidRequest(
            "'tool_choice.type' is one of auto, any, tool, none.", param="tool_choice.type"
        )
    is_one = choice.get("disable_parallel_tool_use")
    if not isinstance(is_one, bool | None):
        raise InvalidRequest(
            "'disable_parallel_tool_use' is true or false.",
            param="tool_choice.disable_parallel_tool_use",
        )
    if mode in (Mode.REQUIRED, Mode.NAMED) and not tools:
        raise InvalidRequest("'tool_choice' needs 'tools'.", param="tool_choice")
    if mode is not Mode.NAMED:
        return mode, tools, bool(is_one)
    for tool in tools:
        if name_of(tool) == choice.get("name"):
            return mode, [tool], True
    raise InvalidRequest("'tool_choice.name' is that of none of 'tools'.", param="tool_choice.name")
