"""A schema without what asks for nothing, so that it is refused for nothing.

The library refuses keywords by name, whatever they say. What clients generate has some of them
where they restrict no value: zod writes `propertyNames` of any string into every record, other
libraries `uniqueItems: false`, and of two branches one that has no condition. They are left out
here, by JSON Schema's own rules, and names of members that are told one by one become a pattern.
What may be longer than any bound of ours (`maxLength` of a million) may be as long as that: what
comes of it is of the schema still.
Values (`enum`, `const`, `default`) are never looked into: what stands there is no keyword.

A schema is walked by recursion, and so has to be of a bounded depth; see `limits`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from gateway.services.constraints.limits import MAX_COUNT

_OF_ONE: Final = frozenset(
    {
        *("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not"),
        *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    }
)
_OF_SEVERAL: Final = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_BY_NAME: Final = frozenset(
    {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
)
_MOST: Final = frozenset({"maxItems", "maxLength", "maxProperties"})
_COUNTS: Final = _MOST | {"minItems", "minLength", "minProperties"}
_ANNOTATIONS: Final = frozenset({"$comment", "description", "title"})
# OpenAPI's words for how a text is shown or meant, and not for what is in it.
_FORMATS_OF_ANY: Final = frozenset({"binary", "password"})


def simplified(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that takes the same values, but for what is longer than `limits` allow."""
    kept = {
        name: _inner(name, value)
        for name, value in schema.items()
        if not _asks_for_nothing(name, value, schema)
    }
    return _with_members(kept)


def _inner(name: str, value: Any) -> Any:
    if name in _COUNTS and isinstance(value, float) and value.is_integer():
        value = int(value)
    if name in _MOST and isinstance(value, int | float) and value > MAX_COUNT:
        return MAX_COUNT
    if name in _OF_ONE and isinstance(value, Mapping):
        return simplified(value)
    if name in _OF_SEVERAL and isinstance(value, list):
        return [simplified(each) if isinstance(each, Mapping) else each for each in value]
    if name in _BY_NAME and isinstance(value, Mapping):
        return {
            member: simplified(each) if isinstance(each, Mapping) else each
            for member, each in value.items()
        }
    return value


def _asks_for_nothing(name: str, value: Any, beside: Mapping[str, Any]) -> bool:
    match name:
        case "propertyNames":
            return _is_any_string(value)
        case "uniqueItems" | "not":
            return value is False
        case "if":
            return "then" not in beside and "else" not in beside
        case "then" | "else":
            return "if" not in beside
        case "contains" | "minContains":
            is_optional = beside.get("minContains") == 0 and "maxContains" not in beside
            return is_optional or "contains" not in beside
        case "maxContains":
            return "contains" not in beside
        case "dependencies" | "dependentRequired" | "dependentSchemas":
            return bool(value == {})
        case "unevaluatedItems" | "unevaluatedProperties":
            return value is True or value == {}
        case "format":
            return value in _FORMATS_OF_ANY if isinstance(value, str) else False
    return False


def _is_any_string(schema: Any) -> bool:
    """Tell whether every name is of a schema of names."""
    if not isinstance(schema, Mapping):
        return schema is True
    return schema.get("type", "string") == "string" and not schema.keys() - _ANNOTATIONS - {"type"}


def _with_members(schema: dict[str, Any]) -> dict[str, Any]:
    """Spell names of which there are a few as a pattern, beside which there is no other member."""
    names = schema.get("propertyNames")
    if "properties" in schema or "patternProperties" in schema or not isinstance(names, Mapping):
        return schema
    few: Any = names.get("enum")
    is_of_few = not names.keys() - _ANNOTATIONS - {"type", "enum"}
    if not is_of_few or names.get("type", "string") != "string" or not _are_texts(few):
        return schema
    # Not a member each: what all of them are would be written as often as there are names.
    pattern = "^(" + "|".join(map(_escaped, few)) + ")$"
    each = schema.get("additionalProperties", True)
    rest = {name: value for name, value in schema.items() if name != "propertyNames"}
    return rest | {"patternProperties": {pattern: each}, "additionalProperties": False}


def _escaped(name: str) -> str:
    return re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", name)


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and values != [] and all(isinstance(v, str) for v in values)
