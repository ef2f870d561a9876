"""The walk over a schema: what its keywords are rewritten to, and then what that holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gateway.services.constraints.narrowing import choices, formats, items, members, numbers
from gateway.services.constraints.narrowing.scope import Instead, Scope, TooMuch

Rule = Callable[[Mapping[str, Any], Scope], Instead | None]

_RULES: Final[dict[str, Rule]] = {
    "contains": items.contains,
    "dependencies": members.depended,
    "dependentRequired": members.depended,
    "dependentSchemas": members.depended,
    "const": numbers.valued,
    "enum": numbers.valued,
    "exclusiveMaximum": numbers.bounded,
    "exclusiveMinimum": numbers.bounded,
    "format": formats.told,
    "if": choices.conditional,
    "maxProperties": members.counted,
    "maximum": numbers.bounded,
    "minItems": items.impossible,
    "minLength": formats.impossible,
    "minProperties": members.counted,
    "minimum": numbers.bounded,
    "multipleOf": numbers.multiplied,
    "not": choices.negated,
    "oneOf": choices.one_of,
    "propertyNames": members.names,
    "unevaluatedItems": items.unevaluated,
    "unevaluatedProperties": members.unevaluated,
    "uniqueItems": items.unique,
}
_OF_ONE: Final = frozenset({"additionalItems", "additionalProperties", "items"})
_OF_SEVERAL: Final = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_BY_NAME: Final = frozenset({"$defs", "definitions", "patternProperties", "properties"})
_OF_SCHEMAS: Final = _OF_ONE | _OF_SEVERAL | _BY_NAME | _RULES.keys() | {"then", "else"}
_APPLICATORS: Final = frozenset({"$ref", "allOf", "anyOf", "const", "enum", "oneOf"})
_APART: Final = frozenset({"additionalItems", "patternProperties"})


class Narrowed(NamedTuple):
    """Hold a schema, and the keywords whose bounds nothing that is ever written can meet: values of
    their types are left out."""

    schema: dict[str, Any]
    beyond: tuple[str, ...] = ()


def narrowed(schema: Mapping[str, Any]) -> Narrowed:
    """Return a schema of keywords that the library knows, as far as that can be written, which
    takes no value that the schema does not take.

    `schema` is of a bounded depth, and `simplified`. Raises: `CannotBeHeld`.
    """
    scope = Scope(schema)
    try:
        found: dict[str, Any] = _narrowed(schema, scope)
    except (TooMuch, RecursionError):
        return Narrowed(dict(schema))
    return Narrowed(found, tuple(sorted(scope.beyond)))


def _of_a_known_draft(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave out a `$schema` that is nobody's: it is read as the newest draft then."""
    said = schema.get("$schema")
    if said is None or (isinstance(said, str) and "json-schema.org" in said):
        return schema
    return {name: value for name, value in schema.items() if name != "$schema"}


def _narrowed(schema: Any, scope: Scope) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    scope.spend(*(value for name, value in schema.items() if name not in _OF_SCHEMAS))
    rest, more = dict(_of_a_known_draft(schema)), list[Any]()
    for keyword, rule in _RULES.items():
        instead = rule(rest, scope) if keyword in rest else None
        if instead is not None:
            kept = {name: each for name, each in rest.items() if name not in instead.without}
            rest = kept | dict(instead.keywords)
            more += instead.schemas
    if more and isinstance(rest.setdefault("allOf", []), list):
        rest["allOf"] = [*rest["allOf"], *more]
    return {name: _inner(name, rest[name], scope) for name in _in_order(rest)}


def _in_order(schema: Mapping[str, Any]) -> list[str]:
    """Put what looks at the same value last: the library takes keywords on each side of it apart,
    and `additionalItems` is nothing without `items`."""
    return sorted(schema, key=_APPLICATORS.__contains__) if _APART & schema.keys() else [*schema]


def _inner(name: str, value: Any, scope: Scope) -> Any:
    if name in _OF_SEVERAL and isinstance(value, list):
        return [_narrowed(each, scope) for each in value]
    if name in _OF_ONE:
        return _narrowed(value, scope)
    if name in _BY_NAME and isinstance(value, Mapping):
        return {member: _narrowed(each, scope) for member, each in value.items()}
    return value
