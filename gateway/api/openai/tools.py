"""What a chat says of tools: which there are, and which of them may or must be called."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import msgspec

from engine.contract import Capability, SamplingParams
from gateway.api.openai.bounds import MAX_TOOLS, TOOL_NAME
from gateway.api.openai.constraints import requested_constraint
from gateway.api.openai.reading import Ignored
from gateway.api.openai.schemas import ChatRequest
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.services.answers import Reading, new_call_id
from gateway.services.constraints import ConstraintSpec
from gateway.services.inference import Message, ServedModel, either, forced_calls

_NAME: Final = re.compile(TOOL_NAME, re.ASCII)
_BANNED: Final = -100.0
Tool = Mapping[str, Any]


class Mode(StrEnum):
    """Say whether tools may be called."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


_FORCED: Final = (Mode.REQUIRED, Mode.NAMED)


@dataclass(frozen=True, slots=True)
class Offer:
    """Hold the tools that a model is told of, of `num_chars` as JSON; none where `mode` is none."""

    mode: Mode
    tools: Sequence[Tool] = ()
    num_chars: int = 0

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name_of(tool) for tool in self.tools)

    @property
    def is_forced(self) -> bool:
        """Tell whether an answer is calls alone."""
        return bool(self.tools) and self.mode in _FORCED

    def stops(self, asked: tuple[str, ...], param: str, ignored: Ignored) -> tuple[str, ...]:
        """Return what ends the text of an answer, which has none where calls are forced: a client
        cannot mean the words that open a call, nor see them."""
        if not asked or not self.is_forced:
            return asked
        ignored.add(param)
        return ()


def name_of(tool: Tool) -> str:
    """Return the name of a tool that was checked."""
    name: str = tool["function"]["name"]
    return name


def requested_tools(body: ChatRequest, model: ServedModel, ignored: Ignored) -> Offer:
    """Read `tools` and `tool_choice`.

    Raises: `InvalidRequest`; `UnsupportedParameter`: the model takes none, or the engine cannot
    force calls.
    """
    mode, offered = _choice(body.tool_choice, checked_tools(body.tools or []))
    return offer_of(mode, offered, model, ignored)


def offer_of(
    mode: Mode,
    offered: Sequence[Tool],
    model: ServedModel,
    ignored: Ignored,
    *,
    strict: str = "tools.function.strict",
) -> Offer:
    """Offer tools that were checked, where the model can be told of them; as `requested_tools`.

    `strict` is what a request calls the wish that nothing of them be left to the model.
    """
    if mode is Mode.NONE or not offered:
        return Offer(Mode.NONE)
    if not model.takes_tools:
        raise UnsupportedParameter(
            f"The model '{model.name}' knows no tools; with 'tool_choice': 'none' it answers "
            "without them.",
            param="tools",
        )
    is_forced = mode in _FORCED
    if is_forced and Capability.GRAMMAR not in model.info.capabilities:
        raise UnsupportedParameter(
            "This engine cannot force a call; use 'auto' or 'none'.", param="tool_choice"
        )
    if not is_forced and any(tool["function"].get("strict") for tool in offered):
        ignored.add(strict)
    return Offer(mode, offered, len(msgspec.json.encode(offered)))


def reading_of(body: ChatRequest, model: ServedModel, offer: Offer) -> Reading | None:
    """Say how an answer is read; None: it is text and nothing else."""
    return read_as(model, offer, is_one=_is_one_call(body, offer))


def read_as(
    model: ServedModel, offer: Offer, *, is_one: bool, new_id: Callable[[], str] = new_call_id
) -> Reading | None:
    """Say how an answer with an offer is read, and what its calls are named by."""
    if not offer.tools and not model.answer_format.thinks:
        return None
    return Reading(model.answer_format, offer.names, is_one, new_id, offer.is_forced)


def constraint_of(body: ChatRequest, model: ServedModel, offer: Offer) -> ConstraintSpec | None:
    """Return what form the answer is to have: calls that are forced, or what it asks for.

    Where tools may be called, it has the form or is calls.

    Raises: `InvalidRequest`: both; what forms raise.
    """
    asked = requested_constraint(body)
    if offer.mode in _FORCED and body.ignore_eos:
        raise _goes_not_with("ignore_eos")
    return held_to(asked, model, offer, is_one=_is_one_call(body, offer))


def held_to(
    asked: ConstraintSpec | None,
    model: ServedModel,
    offer: Offer,
    *,
    is_one: bool,
    schema_param: str = "tools[{}].function.parameters",
) -> ConstraintSpec | None:
    """Return the form of an answer with an offer, as `constraint_of`; `asked` is what it asks for.

    `schema_param` is where the schema of a tool stands in a request.
    """
    calls = model.answer_format.calls
    if calls is None or not offer.tools:
        return asked
    if offer.mode is Mode.AUTO and asked is None:
        return None
    if offer.mode in _FORCED and asked is not None:
        raise _goes_not_with(asked.param)
    forced = forced_calls(
        calls, model.tokenizer, offer.tools, is_one=is_one, schema_param=schema_param
    )
    return forced if asked is None else either(asked, forced)


def _goes_not_with(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"'tool_choice' forces a call, which goes with no '{param}'.", param=param
    )


def _is_one_call(body: ChatRequest, offer: Offer) -> bool:
    return body.parallel_tool_calls is False or offer.mode is Mode.NAMED


def without_calls(
    params: SamplingParams,
    model: ServedModel,
    messages: Sequence[Message],
    *,
    has_tools: bool,
) -> SamplingParams:
    """Ban what opens a call, where none is wanted and a model may have been led to one.

    It needs a token of its own for that, and an engine with biases.
    """
    calls = model.answer_format.calls
    if calls is None or Capability.LOGIT_BIAS not in model.info.capabilities:
        return params
    if not has_tools and not any(message.calls for message in messages):
        return params
    marker = model.tokenizer.id_of(calls.marker)
    if marker is None:
        return params
    biases = dict(params.logit_bias) | {marker: _BANNED}
    return replace(params, logit_bias=tuple(biases.items()))


def checked_tools(tools: Sequence[Tool]) -> Sequence[Tool]:
    """Return tools that are of OpenAI's shape. Raises: `InvalidRequest`."""
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"'tools' takes up to {MAX_TOOLS} tools.", param="tools")
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if tool.get("type") != "function":
            raise UnsupportedParameter(
                "Only tools of the type 'function' are supported.", param=f"{where}.type"
            )
        _check_function(tool.get("function"), f"{where}.function")
    return tools


def _check_function(function: Any, where: str) -> None:
    if not isinstance(function, dict):
        raise InvalidRequest("A tool needs a function.", param=where)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            "A function needs a name of 1 to 64 letters, digits, '_' and '-'.",
            param=f"{where}.name",
        )
    for field, kind in (("description", str), ("parameters", dict), ("strict", bool)):
        value = function.get(field)
        if value is not None and not isinstance(value, kind):
            raise InvalidRequest(
                f"'{field}' of a function must be {_KINDS[kind]}.", param=f"{where}.{field}"
            )


_KINDS: Final = {str: "a text", dict: "an object", bool: "true or false"}


def _choice(
    choice: str | dict[str, Any] | None, tools: Sequence[Tool]
) -> tuple[Mode, Sequence[Tool]]:
    """Return the mode, and the tools that may be called."""
    if choice is None or choice in ("none", "auto"):
        return (Mode.NONE if choice == "none" else Mode.AUTO), tools
    if not tools:
        raise InvalidRequest("'tool_choice' needs 'tools'.", param="tool_choice")
    if choice == "required":
        return Mode.REQUIRED, tools
    if isinstance(choice, dict):
        if choice.get("type") == "function":
            return Mode.NAMED, [_named(choice, tools)]
        if choice.get("type") == "allowed_tools":
            return _allowed(choice.get("allowed_tools"), tools)
    raise InvalidRequest(
        "'tool_choice' is 'none', 'auto', 'required', a function or allowed tools.",
        param="tool_choice",
    )


def _allowed(allowed: Any, tools: Sequence[Tool]) -> tuple[Mode, Sequence[Tool]]:
    mode = allowed.get("mode") if isinstance(allowed, dict) else None
    named = allowed.get("tools") if isinstance(allowed, dict) else None
    if mode not in ("auto", "required") or not isinstance(named, list) or not named:
        raise InvalidRequest(
            "'allowed_tools' needs a 'mode', 'auto' or 'required', and 'tools'.",
            param="tool_choice.allowed_tools",
        )
    wanted = {name_of(_named(one, tools)) for one in named}
    return Mode(mode), [tool for tool in tools if name_of(tool) in wanted]


def _named(choice: Any, tools: Sequence[Tool]) -> Tool:
    """Return the tool that is meant. Raises: `InvalidRequest`."""
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    for tool in tools:
        if name_of(tool) == name:
            return tool
    raise InvalidRequest(
        "'tool_choice' names a function that is not in 'tools'.", param="tool_choice"
    )
