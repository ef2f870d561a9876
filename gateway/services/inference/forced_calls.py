"""Answers that are held to calls of tools, in the words of the model's family.

A grammar of what opens a call, one of the names, and arguments of that tool's schema. Where the
model thinks first, the form begins behind its thinking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from engine.text import Tokenizer
from gateway.errors import ConstraintRefused
from gateway.services.answers import HERMES, LLAMA, MISTRAL, CallFormat, begins_in
from gateway.services.answers.mistral import ARGUMENTS_MARKER
from gateway.services.answers.thinking import CLOSING, OPENING
from gateway.services.constraints import ConstraintSpec, json_rule, lark_spec

_ANSWER: Final = "answer"
_CALLS: Final = "calls"


def forced_calls(
    calls: CallFormat,
    tokenizer: Tokenizer,
    tools: Sequence[Mapping[str, Any]],
    *,
    is_one: bool,
    schema_param: str = "tools[{}].function.parameters",
) -> ConstraintSpec:
    """Ask for one call or more of tools that were checked; Llama's templates take one alone.

    `schema_param` is where the schema of a tool stands in a request.
    Raises: `ConstraintRefused`: a tool's parameters cannot be held to.
    """
    rules = [
        f"args_{index}: {_arguments(tool['function'], schema_param.format(index))}"
        for index, tool in enumerate(tools)
    ]
    names = [str(tool["function"]["name"]) for tool in tools]
    start = _FORMS[calls.name](tokenizer, names, is_one)
    return lark_spec("\n".join([*start, *rules]), param="tools")


def after_thinking(spec: ConstraintSpec, tokenizer: Tokenizer, prompt_tail: str) -> ConstraintSpec:
    """Have a form begin behind the thinking that a prompt's end has opened, or may leave open."""
    begins = begins_in(prompt_tail)
    if begins is False:
        return spec
    thought = f"thought {_marker(tokenizer, CLOSING)}"
    rules = ["thought: /(?s:.*)/"]
    if tokenizer.special_id_of(CLOSING) is None:
        thought = "thought"
        rules = [f'thought[suffix="{CLOSING}"]: /(?s:.*)/']
    if begins is None:
        thought = f"({_marker(tokenizer, OPENING)} {thought} ends)?"
    else:
        thought += " ends"
    grammar = "\n".join([f"start: {thought} @{_ANSWER}", *rules, r"ends: /\n{0,2}/"])
    return _composed(grammar, {_ANSWER: spec}, spec.param)


def either(spec: ConstraintSpec, calls: ConstraintSpec) -> ConstraintSpec:
    """Ask for an answer of a form, or for calls."""
    return _composed(f"start: @{_ANSWER} | @{_CALLS}", {_ANSWER: spec, _CALLS: calls}, spec.param)


def _composed(grammar: str, parts: Mapping[str, ConstraintSpec], param: str) -> ConstraintSpec:
    """Put grammars under one that names them; one that is composed itself stays as it is."""
    grammars: list[dict[str, Any]] = [{"lark_grammar": grammar}]
    for name, part in parts.items():
        first, *others = msgspec.json.decode(part.grammar)["grammars"]
        taken = name if not others else f"{name}_of_all"
        if others:
            grammars[0]["lark_grammar"] = grammars[0]["lark_grammar"].replace(
                f"@{name}", f"@{taken}"
            )
        grammars += [first | {"name": taken}, *others]
    return ConstraintSpec(msgspec.json.encode({"grammars": grammars}).decode(), param)


def _hermes(tokenizer: Tokenizer, names: Sequence[str], is_one: bool) -> list[str]:
    opening, closing = _marker(tokenizer, "<tool_call>"), _marker(tokenizer, "</tool_call>")
    call = f'call: {opening} "\\n" object "\\n" {closing}'
    return [_several("call", '"\\n"', is_one), call, _objects(names, "arguments")]


def _llama(tokenizer: Tokenizer, names: Sequence[str], is_one: bool) -> list[str]:
    return ["start: object", _objects(names, "parameters")]


def _mistral(tokenizer: Tokenizer, names: Sequence[str], is_one: bool) -> list[str]:
    opening = _marker(tokenizer, "[TOOL_CALLS]")
    if tokenizer.id_of(ARGUMENTS_MARKER) is None:
        # The third tokenizer's.
        several = _several("object", '", "', is_one).replace("start: ", "calls: ")
        return [f'start: {opening} "[" calls "]"', several, _objects(names, "arguments")]
    between = _marker(tokenizer, ARGUMENTS_MARKER)
    calls = (f"{_quoted(name)} {between} args_{index}" for index, name in enumerate(names))
    return [_several("call", "", is_one), f"call: {opening} named", f"named: {' | '.join(calls)}"]


_FORMS: Final = {HERMES.name: _hermes, LLAMA.name: _llama, MISTRAL.name: _mistral}


def _several(rule: str, between: str, is_one: bool) -> str:
    return f"start: {rule}" if is_one else f"start: {rule} ({between} {rule})*"


def _objects(names: Sequence[str], arguments: str) -> str:
    """Write the rule of an object that is a call; the name stands first."""
    closing = _quoted("}")
    heads = (_quoted(f'{{"name": "{name}", "{arguments}": ') for name in names)
    calls = (f"{head} args_{index} {closing}" for index, head in enumerate(heads))
    return f"object: {' | '.join(calls)}"


def _arguments(function: Mapping[str, Any], param: str) -> str:
    schema = {"type": "object"} | (function.get("parameters") or {})
    if schema["type"] != "object":
        raise ConstraintRefused("Parameters are of the type 'object'.", param=param)
    return json_rule(schema, param=param)


def _marker(tokenizer: Tokenizer, text: str) -> str:
    """Write a marker: as a token where it is a special one, which no text can be."""
    token_id = tokenizer.special_id_of(text)
    return _quoted(text) if token_id is None else f"<[{token_id}]>"


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
