"""Arrays: `contains`, `uniqueItems`, `unevaluatedItems`.

A grammar cannot remember what was written, so of values that must differ each arrangement is told
where there are a few, or each place has values of its own. An item that must be there stands at one
of the first places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, combinations, permutations
from typing import Any, Final

from gateway.services.constraints.limits import MAX_COUNT
from gateway.services.constraints.narrowing.disjoint import are_disjoint, values_of
from gateway.services.constraints.narrowing.outside import outside
from gateway.services.constraints.narrowing.scope import Instead, Schema, Scope, any_of
from gateway.services.constraints.narrowing.values import (
    TYPES,
    beyond,
    count_of,
    key_of,
    only,
    types_of,
)

_MOST_ARRANGED: Final = 128
_MOST_PLACES: Final = 64
_LATEST: Final = 8


def contains(schema: Mapping[str, Any], scope: Scope) -> Instead | None:
    """Have the items that must be there first, or behind places with schemas of their own."""
    names = frozenset({"contains", "minContains", "maxContains"})
    if "array" not in types_of(schema):
        return Instead(names)
    wanted = schema["contains"]
    least, most = count_of(schema, "minContains", 1), count_of(schema, "maxContains", MAX_COUNT)
    if least is None or most is None or least > _MOST_PLACES:
        return None
    if "maxContains" not in schema:
        ways = _with_first(schema, [wanted] * least, {}, {})
    elif most < least:
        ways = []
    elif rest := outside(wanted, scope).schemas:
        others = any_of(rest)
        ways = _with_first(schema, [wanted] * least, others, {"additionalItems": others})
    else:
        ways = _with_first(schema, [wanted] * least, {}, {"maxItems": most}, latest=0)
    return Instead(names, [any_of(ways or only(TYPES - {"array"}))])


def _with_first(
    schema: Mapping[str, Any],
    wanted: list[Any],
    before: Any,
    more: Schema,
    *,
    latest: int = _LATEST,
) -> list[Any]:
    last = min(_num_first(schema), latest) if wanted else 0
    return [
        {"minItems": place + len(wanted), "items": [before] * place + wanted} | more
        if wanted
        else {"items": more.get("additionalItems", {})} | more
        for place in range(last + 1)
    ]


def _num_first(schema: Mapping[str, Any]) -> int:
    first = _first(schema)
    return 0 if first is None else len(first)


def _first(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the schemas of the places that have their own; None: there are none."""
    for name in ("prefixItems", "items"):
        if isinstance(schema.get(name), list):
            found: list[Any] = schema[name]
            return found
    return None


def unique(schema: Mapping[str, Any], scope: Scope) -> Instead | None:
    """Have items that differ: by their schemas, or of a few values that are told."""
    names = frozenset({"uniqueItems"})
    least, most = count_of(schema, "minItems", 0), count_of(schema, "maxItems", MAX_COUNT)
    if least is None or most is None:
        return None
    if "array" not in types_of(schema) or most <= 1:
        return Instead(names)
    first = _first(schema)
    if first is not None:
        return Instead(names) if _differ(schema, first, most, scope) else None
    values = values_of(schema.get("items", True), scope)
    if values is None:
        # Where nothing says that an array is wanted, a short one does.
        is_said = schema.keys() & {"contains", "items", "type"}
        return None if is_said or least > 1 else Instead(names, (), {"maxItems": 1})
    each = list({key_of(value): value for value in values}.values())
    ways = _arrangements(each, least, min(most, len(each)))
    return Instead(names, [any_of([*only(TYPES - {"array"}), *ways])])


def _differ(schema: Mapping[str, Any], first: list[Any], most: int, scope: Scope) -> bool:
    rest = schema.get("items" if "prefixItems" in schema else "additionalItems", True)
    if most > len(first) and rest is not False:
        return False
    return all(
        are_disjoint(one, other, scope)
        for place, one in enumerate(first)
        for other in first[place + 1 :]
    )


def _arrangements(values: list[Any], least: int, most: int) -> list[Schema]:
    """Write arrays of some of the values, each once at most: in any order, or in that of the
    values, or of so many that they are few, or a part of the values for each place."""
    if least > most:
        return []
    ways: list[tuple[Callable[[int, int], int], Callable[..., Iterator[Any]]]]
    ways = [(math.perm, permutations), (math.comb, combinations)]
    for highest in (most, max(least, 2), max(least, 1)):
        for count, arranged in ways:
            sizes = range(least, min(highest, most) + 1)
            if _are_few(count(len(values), size) for size in sizes):
                told = [list(each) for size in sizes for each in arranged(values, size)]
                return [{"enum": told}]
    if least > _MOST_PLACES:
        return []
    places = [{"enum": values[place::least]} for place in range(least)]
    return [{"type": "array", "minItems": least, "items": places, "additionalItems": False}]


def _are_few(counts: Iterable[int]) -> bool:
    """Tell whether counts are few together, of which the later ones may take long to find."""
    return all(total <= _MOST_ARRANGED for total in accumulate(counts))


def impossible(schema: Mapping[str, Any], scope: Scope) -> Instead | None:
    """Leave arrays out that would have to be longer than any that is written."""
    return beyond(schema, "minItems", "array", scope)


def unevaluated(schema: Mapping[str, Any], scope: Scope) -> Instead | None:
    """Take `unevaluatedItems` for what it is where no other schema looks at the items."""
    if schema.keys() & IN_PLACE:
        return None
    names = frozenset({"unevaluatedItems"})
    rest = "additionalItems" if isinstance(schema.get("items"), list) else "items"
    if rest in schema:
        return Instead(names)
    return Instead(names, [], {rest: schema["unevaluatedItems"]})


# Schemas that look at the same value.
IN_PLACE: Final = frozenset(
    {
        *("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "contains", "dependencies"),
        *("dependentSchemas", "else", "if", "not", "oneOf", "then"),
    }
)
