"""What a schema does not take, as schemas that take some of it, or all.

A schema is the conjunction of its keywords, so a value is outside where it is outside of one: each
gives alternatives. A keyword that applies to one type alone is only broken by values of that type.
What is known may be less than all there is, and never more: no alternative takes a value that the
schema takes. So keywords that mean something else in another draft of JSON Schema give none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gateway.services.constraints.limits import MAX_COUNT
from gateway.services.constraints.narrowing.scope import Schema, Scope, any_of
from gateway.services.constraints.narrowing.values import (
    TYPES,
    only,
    other_than,
    texts_of,
    types_of,
)


class Outside(NamedTuple):
    """Hold alternatives, each of which takes only what a schema does not, and whether together
    they take all of that."""

    schemas: list[Any]
    is_whole: bool

    @property
    def is_known(self) -> bool:
        """Tell whether it is of use: something is known, or it is known that there is nothing."""
        return bool(self.schemas) or self.is_whole


_UNKNOWN: Final = Outside([], False)
_NOTHING: Final = Outside([], True)


def outside(schema: Any, scope: Scope) -> Outside:
    """Return what a schema does not take."""
    if isinstance(schema, bool):
        return _NOTHING if schema else Outside([{}], True)
    if not isinstance(schema, Mapping) or scope.is_old:
        return _UNKNOWN
    scope.spend(schema.get("enum"), schema.get("const"), schema.get("required"))
    if "$ref" in schema:
        return _of_reference(schema, scope)
    parts = [_RULES[name](schema, scope) for name in schema if name in _RULES]
    return _either(parts, is_whole=not schema.keys() & _SAY_NOTHING)


def _either(parts: list[Outside], *, is_whole: bool = True) -> Outside:
    schemas = [each for part in parts for each in part.schemas]
    return Outside(schemas, is_whole and all(part.is_whole for part in parts))


def _all(parts: list[Outside]) -> Outside:
    """Write what is outside of each of several."""
    if any(not part.schemas for part in parts):
        return Outside([], any(part == _NOTHING for part in parts))
    return Outside(
        [{"allOf": [any_of(part.schemas) for part in parts]}], all(part.is_whole for part in parts)
    )


def _of_reference(schema: Mapping[str, Any], scope: Scope) -> Outside:
    # What stands beside it counts in some drafts only.
    is_alone = not schema.keys() & (_RULES.keys() | _SAY_NOTHING)
    with scope.followed(schema["$ref"]) as found:
        beyond = _UNKNOWN if found is None else outside(found, scope)
    return beyond if is_alone else Outside(beyond.schemas, False)


def _of_type(schema: Mapping[str, Any], scope: Scope) -> Outside:
    asked = schema["type"]
    names = [asked] if isinstance(asked, str) else texts_of(asked)
    has_part = "integer" in names and "number" not in names
    return Outside(only(TYPES - types_of(schema)), not has_part)


def _of_enum(schema: Mapping[str, Any], scope: Scope) -> Outside:
    values = schema["enum"]
    return Outside(*other_than(values)) if isinstance(values, list) else _UNKNOWN


def _of_const(schema: Mapping[str, Any], scope: Scope) -> Outside:
    return Outside(*other_than([schema["const"]]))


def _beyond(type_: str, name: str, opposite: str, step: int) -> Callable[..., Outside]:
    """Make the rule of a bound, which is broken by what is beyond it."""

    def rule(schema: Mapping[str, Any], scope: Scope) -> Outside:
        bound = schema[name]
        if isinstance(bound, bool) or not isinstance(bound, int | float):
            return _UNKNOWN
        if step and not (isinstance(bound, int) and 0 <= bound + step <= MAX_COUNT):
            # A count is never less than nothing; one above our bounds is not what was asked for.
            return _NOTHING if bound + step < 0 else _UNKNOWN
        if opposite == "minProperties" and bound > 0:
            # Of members without a name no two are known to differ.
            return _UNKNOWN
        return Outside([{"type": type_, opposite: bound + step}], True)

    return rule


def _of_required(schema: Mapping[str, Any], scope: Scope) -> Outside:
    names = texts_of(schema["required"])
    return Outside([{"type": "object", "properties": {name: False}} for name in names], True)


def _of_properties(schema: Mapping[str, Any], scope: Scope) -> Outside:
    members = schema["properties"]
    if not isinstance(members, Mapping):
        return _UNKNOWN
    parts = []
    for name, member in members.items():
        schemas, is_whole = outside(member, scope)
        having: Schema = {"type": "object", "required": [name]}
        with_it = [having | {"properties": {name: any_of(schemas)}}] if schemas else []
        parts.append(Outside(with_it, is_whole))
    return _either(parts)


def _of_items(schema: Mapping[str, Any], scope: Scope) -> Outside:
    items = schema["items"]
    if isinstance(items, list):
        return _either([_at(place, outside(item, scope)) for place, item in enumerate(items)])
    before = schema.get("prefixItems")
    place = len(before) if isinstance(before, list) else 0
    found = _at(place, outside(items, scope))
    # It may be at a later place too.
    return found if not found.schemas else Outside(found.schemas, False)


def _at(place: int, item: Outside) -> Outside:
    if not item.schemas:
        return item
    places = [{}] * place + [any_of(item.schemas)]
    return Outside([{"type": "array", "minItems": place + 1, "items": places}], item.is_whole)


def _of_contains(schema: Mapping[str, Any], scope: Scope) -> Outside:
    if "minContains" in schema:
        return _UNKNOWN
    schemas, is_whole = outside(schema["contains"], scope)
    if not schemas:
        return Outside([{"type": "array", "maxItems": 0}], is_whole)
    return Outside([{"type": "array", "items": any_of(schemas)}], is_whole)


def _of_not(schema: Mapping[str, Any], scope: Scope) -> Outside:
    return Outside([schema["not"]], True)


def _of_any(schema: Mapping[str, Any], scope: Scope) -> Outside:
    schemas = schema["anyOf"]
    if not isinstance(schemas, list):
        return _UNKNOWN
    return _all([outside(each, scope) for each in schemas])


def _of_one(schema: Mapping[str, Any], scope: Scope) -> Outside:
    schemas = schema["oneOf"]
    if not isinstance(schemas, list):
        return _UNKNOWN
    # What two of them take is outside as well.
    none = _all([outside(each, scope) for each in schemas])
    return Outside(none.schemas, len(schemas) == 1 and none.is_whole)


def _of_all(schema: Mapping[str, Any], scope: Scope) -> Outside:
    schemas = schema["allOf"]
    if not isinstance(schemas, list):
        return _UNKNOWN
    return _either([outside(each, scope) for each in schemas])


def _of_if(schema: Mapping[str, Any], scope: Scope) -> Outside:
    condition = schema["if"]
    then, other = (outside(schema.get(name, True), scope) for name in ("then", "else"))
    parts = []
    if then.schemas:
        parts.append({"allOf": [condition, any_of(then.schemas)]})
    if other.schemas:
        unmet = outside(condition, scope)
        if unmet.schemas:
            parts.append({"allOf": [any_of(unmet.schemas), any_of(other.schemas)]})
        other = Outside(other.schemas, other.is_whole and unmet.is_whole)
    return Outside(parts, then.is_whole and other.is_whole)


_RULES: Final[dict[str, Callable[[Mapping[str, Any], Scope], Outside]]] = {
    "allOf": _of_all,
    "anyOf": _of_any,
    "const": _of_const,
    "contains": _of_contains,
    "enum": _of_enum,
    "exclusiveMaximum": _beyond("number", "exclusiveMaximum", "minimum", 0),
    "exclusiveMinimum": _beyond("number", "exclusiveMinimum", "maximum", 0),
    "if": _of_if,
    "items": _of_items,
    "maxItems": _beyond("array", "maxItems", "minItems", 1),
    "maxLength": _beyond("string", "maxLength", "minLength", 1),
    "maxProperties": _beyond("object", "maxProperties", "minProperties", 1),
    "maximum": _beyond("number", "maximum", "exclusiveMinimum", 0),
    "minItems": _beyond("array", "minItems", "maxItems", -1),
    "minLength": _beyond("string", "minLength", "maxLength", -1),
    "minProperties": _beyond("object", "minProperties", "maxProperties", -1),
    "minimum": _beyond("number", "minimum", "exclusiveMaximum", 0),
    "not": _of_not,
    "oneOf": _of_one,
    "properties": _of_properties,
    "required": _of_required,
    "type": _of_type,
}
# Of what breaks these nothing is known.
_SAY_NOTHING: Final = frozenset(
    {
        *("additionalItems", "additionalProperties", "dependencies", "dependentRequired"),
        *("dependentSchemas", "format", "maxContains", "minContains", "multipleOf", "pattern"),
        *("patternProperties", "prefixItems", "propertyNames", "unevaluatedItems"),
        *("unevaluatedProperties", "uniqueItems", "$dynamicRef", "$recursiveRef"),
    }
)
