"""What a request asks of the form of its answer, in OpenAI's words, vLLM's, and vLLM's old ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from gateway.api.openai.parameters import STRUCTURED_OUTPUTS, Fates
from gateway.api.openai.schemas import ResponseFormat, SamplingFields, StructuredOutputs
from gateway.errors import ConstraintRefused, InvalidRequest
from gateway.services.constraints import (
    ConstraintSpec,
    choice_spec,
    client_grammar_spec,
    json_spec,
    regex_spec,
)
from gateway.services.json_shape import check_shape

_ANY_OBJECT: Final = {"type": "object"}
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
_FATES: Final = Fates(STRUCTURED_OUTPUTS)


def requested_constraint(body: SamplingFields) -> ConstraintSpec | None:
    """Return what form the answer is to have; None: any.

    Raises: `InvalidRequest`: two are asked for, or one that no answer can be held to.
    """
    asked = list(_asked(body))
    if not asked:
        return None
    if len(asked) > 1:
        first, second = (spec.param for spec in asked[:2])
        raise InvalidRequest(
            f"'{first}' and '{second}' each ask for a form of the answer; leave one out.",
            param=second,
        )
    if body.ignore_eos:
        raise InvalidRequest(
            f"With '{asked[0].param}' an answer ends where its form does; leave 'ignore_eos' out.",
            param="ignore_eos",
        )
    return asked[0]


def _asked(body: SamplingFields) -> Iterator[ConstraintSpec]:
    if body.response_format is not None:
        yield from _of_format(body.response_format)
    if body.structured_outputs is not None:
        yield from _of_structured(body.structured_outputs)
    if body.guided_json is not None:
        yield json_spec(_schema(body.guided_json, "guided_json"), param="guided_json")
    if body.guided_regex is not None:
        yield regex_spec(body.guided_regex, param="guided_regex")
    if body.guided_choice is not None:
        yield choice_spec(body.guided_choice, param="guided_choice")
    if body.guided_grammar is not None:
        yield client_grammar_spec(body.guided_grammar, param="guided_grammar")


def _of_format(asked: ResponseFormat) -> Iterator[ConstraintSpec]:
    if asked.type in ("text", "json_object") and asked.json_schema is not None:
        raise InvalidRequest(
            "'json_schema' goes with 'type' json_schema alone.", param="response_format.json_schema"
        )
    if asked.type == "text":
        return
    if asked.type == "json_object":
        yield json_spec(_ANY_OBJECT, param="response_format")
        return
    if asked.type != "json_schema":
        raise InvalidRequest(
            "'response_format.type' must be one of text, json_object, json_schema.",
            param="response_format.type",
        )
    if asked.json_schema is None or asked.json_schema.schema is None:
        raise InvalidRequest(
            "'response_format' of type json_schema needs 'json_schema' with 'name' and 'schema'.",
            param="response_format.json_schema",
        )
    yield json_spec(asked.json_schema.schema, param="response_format")


def _of_structured(asked: StructuredOutputs) -> Iterator[ConstraintSpec]:
    _FATES.refuse(asked, under="structured_outputs.")
    found = list(_kinds(asked))
    if not found:
        raise InvalidRequest(
            "'structured_outputs' needs one of json, regex, choice, grammar, json_object.",
            param="structured_outputs",
        )
    yield from found


def _kinds(asked: StructuredOutputs) -> Iterator[ConstraintSpec]:
    under, is_compact = "structured_outputs.", bool(asked.disable_any_whitespace)
    if asked.json is not None:
        schema = _schema(asked.json, under + "json")
        yield json_spec(schema, param=under + "json", is_compact=is_compact)
    if asked.regex is not None:
        yield regex_spec(asked.regex, param=under + "regex")
    if asked.choice is not None:
        yield choice_spec(asked.choice, param=under + "choice")
    if asked.grammar is not None:
        yield client_grammar_spec(asked.grammar, param=under + "grammar")
    if asked.json_object:
        yield json_spec(_ANY_OBJECT, param=under + "json_object", is_compact=is_compact)


def _schema(asked: dict[str, Any] | str, param: str) -> dict[str, Any]:
    """Read a schema, which may be spelled as a text."""
    if isinstance(asked, dict):
        return asked
    text = asked.encode(errors="replace")
    check_shape(text)
    try:
        return _OBJECT.decode(text)
    except msgspec.DecodeError:
        raise ConstraintRefused(f"'{param}' is no JSON schema.", param=param) from None
