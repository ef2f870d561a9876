"""The types of values, and what is left of all values beside some.

Numbers are told by bounds, which the library reads as doubles: beside one that is no double, all up
to the next doubles are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

from gateway.services.constraints.limits import MAX_COUNT
from gateway.services.constraints.narrowing.scope import Instead, Schema, Scope, any_of

TYPES: Final = frozenset({"array", "boolean", "null", "number", "object", "string"})
# Of texts together, and of one, whose characters become groups within groups.
_MOST_CHARS, _LONGEST = 1000, 60


def types_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the types of values that a schema may take, by `type` alone."""
    asked = schema.get("type")
    names = texts_of([asked] if isinstance(asked, str) else asked)
    if not names:
        return TYPES
    return frozenset("number" if name == "integer" else name for name in names) & TYPES


def texts_of(values: Any) -> list[str]:
    """Return the texts of a list; of what is none, nothing."""
    return [each for each in values if isinstance(each, str)] if isinstance(values, list) else []


def count_of(schema: Mapping[str, Any], name: str, otherwise: int) -> int | None:
    """Return a bound of counts; None: it is none."""
    bound = schema.get(name, otherwise)
    is_count = isinstance(bound, int) and not isinstance(bound, bool) and bound >= 0
    return bound if is_count else None


def beyond(schema: Mapping[str, Any], name: str, type_: str, scope: Scope) -> Instead | None:
    """Leave a type out whose values would have to be larger than any that is written."""
    bound = schema[name]
    if not isinstance(bound, int) or bound <= MAX_COUNT:
        return None
    scope.beyond.add(name)
    return Instead(frozenset({name}), [any_of(only(types_of(schema) - {type_}))])


def type_of(value: Any) -> str:
    """Return the type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def only(types: Iterable[str]) -> list[Schema]:
    """Write what takes any value of some types; of none, no schema."""
    names = sorted(types)
    return [{"type": names}] if names else []


def key_of(value: Any) -> Any:
    """Return what is equal for values that JSON Schema holds equal, and hashable."""
    if isinstance(value, list):
        return ("array", *map(key_of, value))
    if isinstance(value, Mapping):
        return ("object", frozenset((name, key_of(each)) for name, each in value.items()))
    return (type_of(value), value)


def other_than(values: Collection[Any]) -> tuple[list[Schema], bool]:
    """Return schemas that take values but these, and whether they take all others."""
    by_type: dict[str, list[Any]] = {}
    for value in values:
        by_type.setdefault(type_of(value), []).append(value)
    found = only(TYPES - by_type.keys())
    if len({*by_type.get("boolean", ())}) == 1:
        found.append({"const": not by_type["boolean"][0]})
    if numbers := by_type.get("number"):
        found += _beside(numbers)
    if texts := by_type.get("string"):
        found += _texts_but(texts)
    if arrays := by_type.get("array"):
        found += _of_other_length(arrays)
    if objects := by_type.get("object"):
        found += _without_a_member(objects)
    is_whole = not by_type.keys() & {"array", "object"}
    return found, is_whole and ("string" not in by_type or _can_be_told(by_type["string"]))


def _beside(numbers: list[float]) -> list[Schema]:
    places = sorted({_span(number) for number in numbers})
    lows = [None, *(high for _, high in places)]
    highs = [*(low for low, _ in places), None]
    found: list[Schema] = []
    for low, high in zip(lows, highs, strict=True):
        bounds = {"exclusiveMinimum": low, "exclusiveMaximum": high}
        if low is None or high is None or low < high:
            given = {name: bound for name, bound in bounds.items() if bound is not None}
            found.append({"type": "number"} | given)
    return found


def _span(number: float) -> tuple[float, float]:
    """Return doubles between which there is no other value than this."""
    try:
        near = float(number)
    except OverflowError:
        largest = math.copysign(math.inf, number)
        return (math.nextafter(largest, 0), math.nextafter(largest, 0))
    if near == number:
        return near, near
    return math.nextafter(near, -math.inf), math.nextafter(near, math.inf)


def _can_be_told(texts: Collection[str]) -> bool:
    return sum(map(len, texts)) <= _MOST_CHARS and max(map(len, texts)) <= _LONGEST


def _texts_but(texts: Collection[str]) -> list[Schema]:
    if not _can_be_told(texts):
        return []
    return [{"type": "string", "pattern": f"^{_but(frozenset(texts))}$"}]


def _but(texts: frozenset[str]) -> str:
    """Write a pattern of all that is none of some texts, letter by letter."""
    rests: dict[str, set[str]] = {}
    for text in texts:
        if text:
            rests.setdefault(text[0], set()).add(text[1:])
    others = "".join(re.sub(r"[\\\]\[^&~-]", r"\\\g<0>", head) for head in sorted(rests))
    ways = [f"[^{others}][\\s\\S]*" if rests else r"[\s\S]+"]
    ways += [literal(head) + _but(frozenset(rest)) for head, rest in sorted(rests.items())]
    return f"({'|'.join(ways)}){'' if '' in texts else '?'}"


def literal(text: str) -> str:
    """Write a text as a pattern."""
    return re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", text)


def _of_other_length(arrays: list[list[Any]]) -> list[Schema]:
    lengths = sorted({len(array) for array in arrays})
    found: list[Schema] = [{"type": "array", "minItems": lengths[-1] + 1}]
    for low, high in pairwise([-1, *lengths]):
        if high - low > 1:
            found.append({"type": "array", "minItems": low + 1, "maxItems": high - 1})
    return found


def _without_a_member(objects: list[Mapping[str, Any]]) -> list[Schema]:
    """Write objects that lack what all of these have; beside an empty one, that are not empty."""
    shared = set(objects[0]).intersection(*objects[1:])
    if shared:
        return [{"type": "object", "properties": {min(shared): False}}]
    return [{"type": "object", "minProperties": 1}] if not any(objects) else []
