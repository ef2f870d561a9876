"""What the library does not know is put into what it knows, and no value is taken more for it."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from gateway.errors import ConstraintRefused
from gateway.services.constraints import json_spec
from gateway.services.constraints.limits import MAX_SCHEMA_BYTES, check_schema
from gateway.services.constraints.narrowing import CannotBeHeld, narrowed
from gateway.services.constraints.simplified import simplified

Schema = dict[str, Any]

_NAMES = st.sampled_from(["a", "b", "bx"])
_VALUES = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 2, 3, 1.5, 2**60 + 1, "", "a", "b", "bx", "ab"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=8,
)
_TYPES = ["array", "boolean", "integer", "null", "number", "object", "string"]
_FEW = st.integers(0, 3)


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    """Draw any few keywords of draft-07 beside each other."""
    some, members = st.lists(inner, min_size=1, max_size=3), st.dictionaries(_NAMES, inner)
    counts = ("Items", "Length", "Properties")
    keywords = {
        "type": st.sampled_from(_TYPES) | st.lists(st.sampled_from(_TYPES), min_size=1),
        "enum": st.lists(_VALUES, min_size=1, max_size=4),
        "const": _VALUES,
        **{f"{most}{count}": _FEW for most in ("min", "max") for count in counts},
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _FEW),
        "multipleOf": st.integers(1, 3),
        "pattern": st.sampled_from(["^a", "b$", "^.$"]),
        "required": st.lists(_NAMES, unique=True, max_size=2),
        "properties": members,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "x"]), inner, max_size=1),
        "dependencies": st.dictionaries(_NAMES, inner | st.lists(_NAMES, unique=True)),
        "propertyNames": st.sampled_from(
            [False, {"maxLength": 1}, {"pattern": "^b"}, {"enum": ["a", "bx"]}, {"type": "null"}]
        ),
        **dict.fromkeys(("additionalProperties", "not", "contains", "additionalItems"), inner),
        **dict.fromkeys(("if", "then", "else"), inner),
        "items": inner | st.lists(inner, max_size=3),
        "uniqueItems": st.booleans(),
        **dict.fromkeys(("anyOf", "allOf", "oneOf"), some),
        "$ref": st.sampled_from(["#", "#/definitions/it"]),
    }
    few = st.lists(st.sampled_from(sorted(keywords)), min_size=1, max_size=4, unique=True)
    return few.flatmap(lambda names: st.fixed_dictionaries({n: keywords[n] for n in names}))


_SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([True, False, {}, {"type": "integer"}, {"const": "a"}, {"minLength": 1}]),
    _schemas,
    max_leaves=12,
)


def _closed(schema: Schema) -> Schema:
    return schema | {"definitions": {"it": {"type": ["string", "object"], "maxLength": 1}}}


def is_of(value: Any, schema: Schema) -> bool | None:
    """Validate; None: the schema is itself, which says nothing."""
    try:
        return bool(Draft7Validator(schema).is_valid(value))
    except RecursionError:
        return None


@given(_schemas(_SCHEMAS).map(_closed), st.lists(_VALUES, min_size=1, max_size=6))
def test_no_value_is_taken_that_was_not(schema: Schema, values: list[Any]) -> None:
    """Whatever stands beside and within what."""
    try:
        narrower = narrowed(schema).schema
    except CannotBeHeld:
        return
    for value in values:
        if is_of(value, narrower):
            assert is_of(value, schema) is not False, (json.dumps(narrower), value)


_OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"type": ["string", "null"], "maxLength": 1}},
        {"not": {"enum": [1, "a", "ab", True, None]}},
        {"not": {"properties": {"a": {"const": 1}}, "required": ["a"]}},
        {"not": {"anyOf": [{"minimum": 2}, {"maxItems": 1}]}},
        {"not": {"not": {"required": ["a"]}}},
        {"not": {"minLength": 2, "maxItems": 1}},
        {"not": {"maxLength": 1, "minItems": 2, "minimum": 2}},
        {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"maxProperties": 0}},
        {"if": {"const": 1}, "else": {"type": "string"}},
        {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"dependencies": {"a": ["b"], "b": {"maxProperties": 2}}},
        {"propertyNames": {"pattern": "^b"}, "properties": {"a": {}, "bx": {"type": "integer"}}},
        {"propertyNames": {"maxLength": 1}, "additionalProperties": {"type": "integer"}},
        {"propertyNames": False},
        _OBJECT | {"minProperties": 2},
        _OBJECT | {"maxProperties": 1},
        {"uniqueItems": True, "items": {"enum": [1, 2, "a"]}, "maxItems": 3},
        {"uniqueItems": True, "items": [{"type": "integer"}, {"type": "string"}], "maxItems": 2},
        {"uniqueItems": True, "type": ["string", "array"], "maxItems": 1},
        {"contains": {"const": 1}, "maxItems": 1},
        {"format": "regex", "type": "integer"},
    ],
    ids=lambda schema: str(schema)[:60],
)
@given(st.lists(_VALUES, min_size=1, max_size=20))
def test_what_can_be_said_whole_takes_the_same(schema: Schema, values: list[Any]) -> None:
    """No value is lost of what is no narrower, and no keyword is left that the library refuses."""
    narrower = narrowed(schema).schema
    written = json.dumps(narrower)
    for keyword in (
        "not",
        "if",
        "oneOf",
        "dependencies",
        "propertyNames",
        "uniqueItems",
        "contains",
    ):
        assert f'"{keyword}"' not in written
    for value in values:
        assert is_of(value, narrower) == is_of(value, schema), written


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"pattern": "a", "type": "string"}, "type": "string"},
        {"uniqueItems": True, "items": {"type": "string"}},
        {"uniqueItems": True, "items": [{"type": "integer"}, {"type": "integer"}], "maxItems": 2},
        {"propertyNames": {"allOf": [{"pattern": "a"}, {"maxLength": 2}]}},
        {"format": "colour", "type": "string"},
        {"unevaluatedProperties": False, "allOf": [{"properties": {"a": {}}}]},
        {"$schema": "http://json-schema.org/draft-04/schema#", "not": {"const": 1}},
    ],
    ids=lambda schema: str(schema)[:60],
)
def test_what_cannot_be_said_stays(schema: Schema) -> None:
    """So the library refuses it by the keyword."""
    [keyword] = {"not", "uniqueItems", "propertyNames", "format", "unevaluatedProperties"} & (
        schema.keys()
    )
    if keyword != "not" or "$schema" in schema:
        assert narrowed(schema).schema[keyword] == schema[keyword]


_JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False)
    | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=2),
    max_leaves=5,
)
_ANY_KEYWORD = st.sampled_from(
    [
        *("type", "enum", "const", "properties", "required", "items", "prefixItems", "contains"),
        *("minContains", "maxContains", "uniqueItems", "minItems", "maxItems", "not", "if", "then"),
        *("else", "oneOf", "anyOf", "allOf", "dependencies", "dependentRequired", "$ref", "format"),
        *("dependentSchemas", "propertyNames", "minProperties", "maxProperties", "minimum"),
        *("maximum", "exclusiveMinimum", "multipleOf"),
        *("unevaluatedItems", "unevaluatedProperties", "patternProperties", "maxLength", "$schema"),
    ]
)


@given(
    st.dictionaries(
        _ANY_KEYWORD, _JUNK | st.dictionaries(_ANY_KEYWORD, _JUNK, max_size=3), max_size=5
    )
)
@example({"enum": [float("inf")]})
def test_what_is_no_schema_is_no_fault(schema: Schema) -> None:
    """Values of the wrong kind are left for the library to refuse."""
    with contextlib.suppress(ConstraintRefused):
        json_spec(schema, param="p")


def _nested(levels: int) -> Schema:
    schema: Schema = {"type": "object", "required": ["a"]}
    for level in range(levels):
        schema = {"oneOf": [schema, {"properties": {f"p{level}": schema}, "minProperties": 2}]}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        _nested(6),
        {"oneOf": [{"required": [f"p{n}"]} for n in range(200)]},
        {"not": {"enum": [f"{n:03}" * 9 for n in range(1900)]}},
        {"dependencies": {f"p{n}": [f"q{n}"] for n in range(300)}},
        {"definitions": {"a": {"not": {"$ref": "#/definitions/a"}}}, "$ref": "#/definitions/a"},
        {"allOf": [{"if": {"$ref": "#"}, "then": {"not": {"$ref": "#"}}}] * 100},
        {
            "properties": {f"p{n}": {} for n in range(390)},
            "minProperties": 200,
            "maxProperties": 300,
        },
    ],
    ids=lambda schema: str(schema)[:60],
)
def test_what_multiplies_is_bounded(schema: Schema) -> None:
    """However it is nested, little is made of it before it is refused or compiled elsewhere."""
    check_schema(schema, param="p")
    assert len(json.dumps(narrowed(simplified(schema)).schema)) < 8 * MAX_SCHEMA_BYTES


@pytest.mark.parametrize("least", [0, 500])
def test_arrangements_are_counted_no_further_than_they_are_few(least: int) -> None:
    """How two thousand values may be arranged is a number that takes a second to find."""
    values = {"enum": list(range(1999))}
    schema = {"type": "array", "items": values, "uniqueItems": True, "minItems": least}
    began_s = time.thread_time()
    narrowed(schema)
    assert time.thread_time() - began_s < 0.25
