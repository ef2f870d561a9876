"""Objects: `propertyNames`, what members depend on others, and how many there are.

The library counts members only where none of those that are named may be left out. So which of them
are there is told: each way, where they are few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice
from typing import Any, Final

from gateway.services.constraints.limits import MAX_COUNT
from gateway.services.constraints.narrowing.items import IN_PLACE
from gateway.services.constraints.narrowing.outside import outside
from gateway.services.constraints.narrowing.scope import (
    CannotBeHeld,
    Instead,
    Schema,
    Scope,
    any_of,
)
from gateway.services.constraints.narrowing.values import (
    TYPES,
    beyond,
    count_of,
    literal,
    only,
    texts_of,
    types_of,
)

_DEPENDENCIES: Final = frozenset({"dependencies", "dependentRequired", "dependentSchemas"})
# Each of them doubles the ways.
_MOST_APART: Final = 4
_MOST_NAMED: Final = 5
_MOST_WAYS: Final = 64
_SAY_OBJECT: Final = frozenset(
    {"additionalProperties", "patternProperties", "properties", "propertyNames", "required", "type"}
)
_ANY_NAME: Final = "^"
# What a name may break.
_OF_NAMES: Final = frozenset(
    {
        *(
            "$dynamicRef",
            "$recursiveRef",
            "$ref",
            "allOf",
            "anyOf",
            "const",
            "enum",
            "format",
            "if",
        ),
        *("maxLength", "minLength", "not", "oneOf", "pattern"),
    }
)


def depended(schema: Mapping[str, Any], scope: Scope) -> Instead | None:
    """Have a member absent, or what it asks for present; of many, all absent or all asked for."""
    asked: list[tuple[str, Any]] = []
    for keyword in sorted(_DEPENDENCIES & schema.keys()):
        if not isinstance(schema[keyword], Mapping):
            return None
        asked += schema[keyword].items()
    asked = [(name, of) for name, of in asked if of is not True and of not in ([], {})]
    if any(isinstance(of, list) and len(texts_of(of)) < len(of) for _, of in asked):
        return None
    if "object" not in types_of(schema) or not asked:
        return Instead(_DEPENDENCIES)
    present = [
        {"required": [name, *of]} if isinstance(of, list) else {"required": [name], "allOf": [of]}
        for name, of in asked
    ]
    absent: list[Schema] = [{"properties": {name: False}} for name, _ in asked]
    if len(asked) <= _MOST_APART:
        ways = [{"anyOf": [*pair]} for pair in zip(absent, present, strict=True)]
    else:
        none: Schema = {"properties": {name: False for name, _ in asked}}
        ways = [{"anyOf": [none, {"allOf": present}]}]
    return Instead(_DEPENDENCIES, ways)


def names(schema: Mapping[str, Any], scope: Scope) -> Instead | None:
    """Tell names by a pattern, beside which there is no other member."""
    asked = schema["propertyNames"]
    this = frozenset({"propertyNames"})
    if "object" not in types_of(schema) or asked is True:
        return Instead(this)
    pattern = _pattern(asked, scope)
    if pattern is None:
        return None
    if pattern == _ANY_NAME:
        return Instead(this)
    if pattern == "":
        return Instead(this, [{"maxProperties": 0}])
    return Instead(this, [{"patternProperties": {pattern: {}}, "additionalProperties": False}])


def _pattern(asked: Any, scope: Scope) -> str | None:
    """Write which names there may be; empty: none; None: that cannot be written."""
    if isinstance(asked, bool):
        return _ANY_NAME if asked else ""
    if not isinstance(asked, Mapping):
        return None
    scope.spend(asked.get("enum"), asked.get("const"))
    if "string" not in types_of(asked):
        return ""
    said = asked.keys() & _OF_NAMES
    if not said:
        return _ANY_NAME
    if said == {"$ref"}:
        with scope.followed(asked["$ref"]) as found:
            return _pattern(found, scope)
    if said == {"pattern"} and isinstance(asked["pattern"], str):
        return str(asked["pattern"])
    if said == {"enum"} or said == {"const"}:
        texts = texts_of(asked.get("enum", [asked.get("const")]))
        return "^(" + "|".join(map(literal, texts)) + ")$" if texts else ""
    if said == {"anyOf"} and isinstance(asked["anyOf"], list):
        return _one_of_patterns([_pattern(each, scope) for each in asked["anyOf"]])
    if said == {"not"}:
        found = outside(asked["not"], scope)
        return _one_of_patterns([_pattern(each, scope) for each in found.schemas])
    return _of_length(asked) if said <= {"minLength", "maxLength"} else None


def _one_of_patterns(patterns: list[str | None]) -> str | None:
    told = [pattern for pattern in patterns if pattern]
    if None in patterns:
        return None
    return _ANY_NAME if _ANY_NAME in told else "|".join(f"({pattern})" for pattern in told)


def _of_length(asked: Mapping[str, Any]) -> str | None:
    least, most = count_of(asked, "minLength", 0), count_of(asked, "maxLength", MAX_COUNT)
    if least is None or most is None:
        return None
    told_most = most if "maxLength" in asked else ""
    return f"^[\\s\\S]{{{least},{told_most}}}$" if least <= most else ""


def counted(schema: Mapping[str, Any], scope: Scope) -> Instead | None:
    """Tell which of the named members are there, beside which the others are counted.

    Two members without a name may turn out to be one. Raises: `CannotBeHeld`: there must be two.
    """
    bounds = frozenset({"minProperties", "maxProperties"})
    if "object" not in types_of(schema):
        return Instead(bounds)
    if "minProperties" in schema and (instead := beyond(schema, "minProperties", "object", scope)):
        return instead
    members, required = schema.get("properties", {}), {*texts_of(schema.get("required"))}
    least, most = count_of(schema, "minProperties", 0), count_of(schema, "maxProperties", MAX_COUNT)
    if not isinstance(members, Mapping) or least is None or most is None:
        return None
    left = [name for name, each in members.items() if name not in required and each is not False]
    least, most = least - len(required), most - len(required)
    is_open = schema.get("additionalProperties") is not False or "patternProperties" in schema
    if most < max(least, 0):
        return None
    if least > len(left) + 1 and is_open:
        if not schema.keys() & _SAY_OBJECT:
            return Instead(bounds, [any_of(only(TYPES - {"object"}))])
        raise CannotBeHeld("minProperties", "asks for several members whose names are not told")
    if least <= 0 and "maxProperties" not in schema:
        return Instead(bounds)
    if not left or ("maxProperties" in schema and len(left) > _MOST_WAYS):
        return None
    same = {name: schema[name] for name in sorted(bounds & schema.keys())}
    ways = _ways(left, least, most, same, is_open=is_open, is_bounded="maxProperties" in schema)
    return None if len(ways) > _MOST_WAYS else Instead(bounds, [any_of(ways)])


def _ways(
    left: list[str], least: int, most: int, same: Schema, *, is_open: bool, is_bounded: bool
) -> list[Schema]:
    if not is_bounded and len(left) > _MOST_NAMED:
        number = min(least, len(left))
        bounds = same if number < least else {}
        ways = [
            bounds | {"required": left[place : place + number]}
            for place in range(len(left) - number + 1)
        ]
        # Beside none of them, one without a name.
        has_none = is_open and least <= 1
        return [*ways, *([same | {"properties": dict.fromkeys(left, False)}] if has_none else [])]
    present = _present(left, least - 1 if is_open else least, most)
    return [
        same | {"required": [*some], "properties": {n: False for n in left if n not in some}}
        for some in islice(present, _MOST_WAYS + 1)
    ]


def _present(left: list[str], least: int, most: int) -> Iterator[Sequence[str]]:
    """Choose which of some names are there: each way, or where they are many, some that stand
    side by side."""
    for number in range(max(least, 0), min(most, len(left)) + 1):
        if len(left) <= _MOST_NAMED:
            yield from combinations(left, number)
        else:
            ends = range(number, len(left) + 1) if number else [0]
            yield from (left[end - number : end] for end in ends)


def unevaluated(schema: Mapping[str, Any], scope: Scope) -> Instead | None:
    """Take `unevaluatedProperties` for what it is where no other schema looks at the members."""
    if schema.keys() & IN_PLACE:
        return None
    these = frozenset({"unevaluatedProperties"})
    if "additionalProperties" in schema:
        return Instead(these)
    return Instead(these, [], {"additionalProperties": schema["unevaluatedProperties"]})
