"""JSON schemas as hypothesis-jsonschema draws them, in two ways; prints a list of each as JSON.

`meta`: values of draft-07's meta-schema, whose references to itself are followed so many times: any
keyword beside any other, and references that lead to definitions. `typed`: schemas of the kinds
that the package's own tests draw: keywords of one type, with bounds that suit each other, names and
patterns drawn by the package. Booleans and schemas without a keyword are left out: they say
nothing. The same seed gives the same schemas.
"""

from __future__ import annotations

import json
import sys
from copy import deepcopy
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.engine import ConjectureRunner
from hypothesis_jsonschema import from_schema
from hypothesis_jsonschema._encode import encode_canonical_json
from hypothesis_jsonschema._from_schema import JSON_STRATEGY, REGEX_PATTERNS, STRING_FORMATS
from jsonschema.validators import Draft7Validator

Schema = dict[str, Any]

LEVELS = 2
# Drawn for each that is kept: booleans, schemas without a keyword, and what was drawn before.
TRIES = 4
SMALL = st.integers(0, 5)


def opened(part: Any, meta: Schema, levels: int) -> Any:
    """Put in what references lead to; behind the last level there is any schema of no keywords."""
    if isinstance(part, list):
        return [opened(each, meta, levels) for each in part]
    if not isinstance(part, dict):
        return part
    reference = part.get("$ref")
    if reference == "#":
        whole = {name: each for name, each in meta.items() if name not in ("$id", "definitions")}
        return opened(whole, meta, levels - 1) if levels else {"enum": [{}, True, False]}
    if isinstance(reference, str):
        return opened(meta["definitions"][reference.rsplit("/", 1)[1]], meta, levels)
    return {name: opened(each, meta, levels) for name, each in part.items() if name != "default"}


def of_meta_schema() -> st.SearchStrategy[Any]:
    meta = deepcopy(Draft7Validator.META_SCHEMA)
    return from_schema(opened({"$ref": "#"}, meta, LEVELS)).map(with_references)


def with_references(schema: Any) -> Any:
    """Have references lead to a definition of the schema: as drawn they lead nowhere."""
    if not isinstance(schema, dict):
        return schema
    names = sorted(schema.setdefault("definitions", {}))

    def led(part: Any) -> Any:
        if isinstance(part, list):
            return [led(each) for each in part]
        if not isinstance(part, dict):
            return part
        part = {name: led(each) for name, each in part.items()}
        if "$ref" in part and names:
            name = names[len(str(part["$ref"])) % len(names)]
            part["$ref"] = "#/definitions/" + name.replace("~", "~0").replace("/", "~1")
        elif "$ref" in part:
            del part["$ref"]
        return part

    return led(schema)


def bounds(low: str, high: str, values: st.SearchStrategy[int]) -> st.SearchStrategy[Schema]:
    """Draw none, one or both of two bounds, in order."""
    drawn = st.tuples(st.none() | values, st.none() | values)

    def written(pair: tuple[int | None, int | None]) -> Schema:
        if None not in pair:
            pair = tuple(sorted(pair))
        return {
            name: each for name, each in zip((low, high), pair, strict=True) if each is not None
        }

    return drawn.map(written)


def optional(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    return st.fixed_dictionaries({}, optional=strategies)


def joined(*parts: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.tuples(*parts).map(lambda each: {k: v for part in each for k, v in part.items()})


def numbers() -> st.SearchStrategy[Schema]:
    values = st.integers(-(2**53), 2**53)
    return joined(
        st.sampled_from([{"type": "integer"}, {"type": "number"}]),
        bounds("minimum", "maximum", values) | bounds("exclusiveMinimum", "maximum", values),
        optional(multipleOf=st.integers(2, 100) | st.floats(1 / 1024, 100)),
    )


def texts() -> st.SearchStrategy[Schema]:
    return joined(
        st.just({"type": "string"}),
        optional(pattern=REGEX_PATTERNS) | optional(format=st.sampled_from(sorted(STRING_FORMATS))),
        bounds("minLength", "maxLength", st.integers(0, 20)),
    )


LEAVES = st.one_of(
    st.sampled_from([{"type": "null"}, {"type": "boolean"}]),
    numbers(),
    texts(),
    st.builds(dict, const=JSON_STRATEGY),
    st.lists(JSON_STRATEGY, min_size=1, max_size=10, unique_by=encode_canonical_json).map(
        lambda values: {"enum": values}
    ),
)


def arrays(each: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    return joined(
        st.just({"type": "array"}),
        optional(items=each, contains=each, uniqueItems=st.booleans())
        | optional(items=st.lists(each, min_size=1, max_size=4), additionalItems=each),
        bounds("minItems", "maxItems", SMALL),
    )


def objects(each: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    return texts().flatmap(
        lambda named: (
            _objects(each, st.text(), {})
            | _objects(each, from_schema(named), {"propertyNames": named})
            | _objects(each, st.text(), {})
        )
    )


def _objects(
    each: st.SearchStrategy[Any], names: st.SearchStrategy[str], more: Schema
) -> st.SearchStrategy[Schema]:
    few = st.lists(names, min_size=1, max_size=3, unique=True)
    return joined(
        st.just({"type": "object"} | more),
        optional(
            properties=st.dictionaries(names, each, max_size=5),
            required=few,
            additionalProperties=each,
            patternProperties=st.dictionaries(REGEX_PATTERNS, each, max_size=2),
            dependencies=st.dictionaries(names, few | each, max_size=2),
        ),
        bounds("minProperties", "maxProperties", SMALL),
    )


def around(each: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    some = st.lists(each, min_size=1, max_size=3)
    return st.one_of(
        arrays(each),
        objects(each),
        st.builds(lambda one, other: {"if": one, "then": other, "else": {}}, each, each),
        st.builds(lambda one: {"not": one}, each),
        *(st.builds(lambda these, k=k: {k: these}, some) for k in ("anyOf", "oneOf", "allOf")),
    )


def typed() -> st.SearchStrategy[Schema]:
    return st.recursive(LEAVES, around, max_leaves=8)


WAYS = {"meta": of_meta_schema, "typed": typed}


def draw(way: str, number: int, drawn_with: int) -> list[Schema]:
    found: dict[str, Schema] = {}

    @seed(drawn_with)
    @settings(
        max_examples=TRIES * number,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(WAYS[way]())
    def keep(schema: Any) -> None:
        if isinstance(schema, dict) and schema.keys() & Draft7Validator.VALIDATORS.keys():
            found.setdefault(json.dumps(schema), schema)

    # Each is drawn by itself: a few that were changed here and there are not as many schemas.
    ConjectureRunner.generate_mutations_from = lambda *_: None
    keep()
    assert len(found) >= number, f"{len(found)} of {number} schemas"
    # The first ones are the simplest.
    return list(found.values())[-number:]


if __name__ == "__main__":
    wanted, with_seed = int(sys.argv[1]), int(sys.argv[2])
    print(json.dumps({way: draw(way, wanted, with_seed) for way in WAYS}))
