"""What of a schema has no effect is left out, and no value is taken more or less for it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.services.constraints.simplified import simplified

Schema = dict[str, Any]
RECORD = {"type": "object", "additionalProperties": {"type": "integer"}}
NAMES = {"enum": ["a", "b.c"]}


@pytest.mark.parametrize(
    ("schema", "simpler"),
    [
        (RECORD | {"propertyNames": {"type": "string"}}, RECORD),
        (RECORD | {"propertyNames": True}, RECORD),
        (
            RECORD | {"propertyNames": NAMES | {"type": "string"}, "required": ["a"]},
            {
                "type": "object",
                "patternProperties": {r"^(a|b\.c)$": {"type": "integer"}},
                "additionalProperties": False,
                "required": ["a"],
            },
        ),
        ({"uniqueItems": False, "contains": {}, "minContains": 0}, {}),
        ({"then": {}, "else": False}, {}),
        ({"if": {"not": {}}}, {}),
        ({"anyOf": [{"type": "string", "format": "password"}]}, {"anyOf": [{"type": "string"}]}),
        ({"items": [{"not": False}]}, {"items": [{}]}),
        ({"properties": {"then": {"maxContains": 3}}}, {"properties": {"then": {}}}),
        ({"dependentRequired": {}, "unevaluatedItems": True}, {}),
        (
            {"items": {"type": "string", "maxLength": 10**6}, "maxItems": 9},
            {"items": {"type": "string", "maxLength": 100_000}, "maxItems": 9},
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_asks_for_nothing_is_left_out(schema: Schema, simpler: Schema) -> None:
    """At any depth, where it is a keyword; names of which there are a few are a pattern, and no
    bound is above ours."""
    assert simplified(schema) == simpler


@pytest.mark.parametrize(
    "schema",
    [
        RECORD | {"propertyNames": {"type": "string", "minLength": 2}},
        RECORD | {"propertyNames": False},
        RECORD | {"propertyNames": {"enum": []}},
        RECORD | {"propertyNames": NAMES, "properties": {"a": {}}},
        {"uniqueItems": True, "not": {}, "contains": {}},
        {"if": {}, "then": {"type": "string"}},
        {"contains": {}, "minContains": 0, "maxContains": 1},
        {"const": {"uniqueItems": False}, "enum": [{"then": {}}], "default": {"not": False}},
        {"format": "email"},
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_asks_for_something_stays(schema: Schema) -> None:
    """Whether it can be held to is for the library to say; values are not looked into."""
    assert simplified(schema) == schema


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["a", "b.c", "bxc"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b.c", "bxc"]), inner, max_size=3)
    ),
    max_leaves=6,
)
_SMALL: st.SearchStrategy[Any] = st.sampled_from([{}, True, False, {"type": "integer"}, NAMES])
_KEYWORDS = {
    "propertyNames": _SMALL | st.just({"type": "string"}),
    "additionalProperties": _SMALL,
    "uniqueItems": st.booleans(),
    "contains": _SMALL,
    "minContains": st.integers(0, 2),
    "maxContains": st.integers(0, 2),
    "items": _SMALL,
    "not": _SMALL,
    "if": _SMALL,
    "then": _SMALL,
    "else": _SMALL,
    "dependentRequired": st.sampled_from([{}, {"a": ["b.c"]}]),
    "unevaluatedProperties": _SMALL,
    "properties": st.sampled_from([{}, {"a": {"not": False}}]),
    "format": st.sampled_from(["binary", "date"]),
}


@given(st.fixed_dictionaries({}, optional=_KEYWORDS), _VALUES)
def test_the_same_values_are_taken(schema: Schema, value: Any) -> None:
    """Whatever stands beside what, a value is of the schema where it is of the simpler one."""
    whole, simpler = (
        jsonschema.Draft202012Validator(each).is_valid(value)
        for each in (schema, simplified(schema))
    )
    assert whole == simpler, json.dumps(simplified(schema))
