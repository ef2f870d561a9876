"""JSON schemas drawn at random, the same with each run.

hypothesis-jsonschema, which draws values of a schema, does not run on the hypothesis of today; and
what is wanted here are schemas.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Schema = dict[str, Any]

_NAMES = ("a", "b", "kind", "x y", "é")
_FEW = st.integers(0, 6)
_VALUES = st.one_of(st.none(), st.booleans(), st.integers(-99, 99), st.text('aé\n"{', max_size=4))
_LEAVES = st.one_of(
    st.builds(lambda n: {"type": "string", "maxLength": n}, _FEW),
    st.sampled_from(
        [
            *(
                {"type": "string", "pattern": p}
                for p in ("^[a-z]{1,9}$", "^[0-9]{2,4}$", "^(a|bc)?$")
            ),
            *({"type": "string", "format": name} for name in ("date", "uuid", "ipv4")),
            {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 500},
            {"type": ["boolean", "null"]},
            # Of what is no string, a number may have any number of digits.
            {"type": ["integer", "boolean"], "maximum": 99, "minimum": 0, "not": {"const": True}},
            {"type": ["null", "boolean", "string"], "not": {"type": "string"}},
            {"type": "array", "items": {"type": "boolean"}, "maxItems": 3, "uniqueItems": True},
        ]
    ),
    st.builds(
        lambda low, n: {"type": "integer", "minimum": low, "maximum": low + n},
        st.integers(-99, 99),
        _FEW,
    ),
    st.builds(lambda values: {"enum": values}, st.lists(_VALUES, min_size=1, max_size=4)),
    st.builds(lambda value: {"const": value}, _VALUES | st.lists(_VALUES, max_size=3)),
)


def _object(members: dict[str, Schema], num_required: int) -> Schema:
    return {
        "type": "object",
        "properties": members,
        "required": list(members)[:num_required],
        "additionalProperties": False,
    }


def _around(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    few = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.builds(_object, st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4), _FEW),
        st.builds(
            lambda items, n: {"type": "array", "items": items, "minItems": n, "maxItems": n + 1},
            inner,
            st.integers(0, 2),
        ),
        st.builds(lambda items: {"type": "array", "prefixItems": items, "items": False}, few),
        st.builds(lambda kinds: {"anyOf": kinds}, few),
    )


_WHOLE = _around(st.recursive(_LEAVES, _around, max_leaves=6))


def _by_reference(schema: Schema) -> Schema:
    return {"$ref": "#/$defs/it", "$defs": {"it": schema}}


def draw_schemas(number: int) -> list[Schema]:
    """Draw so many different ones."""
    found: dict[str, Schema] = {}

    @settings(
        max_examples=4 * number,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[*HealthCheck],
    )
    @given(_WHOLE | _WHOLE.map(_by_reference))
    def draw(schema: Schema) -> None:
        found.setdefault(json.dumps(schema), schema)

    draw()
    # The first ones are the simplest.
    return list(found.values())[-number:]
