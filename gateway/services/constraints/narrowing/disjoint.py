"""Whether two schemas plainly have no value in common, and the values of one that has few."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.services.constraints.narrowing.scope import Scope
from gateway.services.constraints.narrowing.values import (
    key_of,
    texts_of,
    type_of,
    types_of,
)

_OF_TYPE: Final[dict[str, list[Any]]] = {"null": [None], "boolean": [False, True]}


def values_of(schema: Any, scope: Scope) -> list[Any] | None:
    """Return values of which a schema takes no others; None: they are not told."""
    if schema is False:
        return []
    if not isinstance(schema, Mapping):
        return None
    if "$ref" in schema:
        with scope.followed(schema["$ref"]) as found:
            return None if found is None else values_of(found, scope)
    types = types_of(schema)
    if "const" in schema:
        told: Any = [schema["const"]]
    elif "enum" in schema:
        told = schema["enum"]
    elif types <= _OF_TYPE.keys():
        told = [value for type_ in sorted(types) for value in _OF_TYPE[type_]]
    elif isinstance(schema.get("anyOf"), list):
        parts = [values_of(each, scope) for each in schema["anyOf"]]
        told = None if None in parts else [value for part in parts for value in part or ()]
    else:
        told = None
    if not isinstance(told, list):
        return None
    scope.spend(told)
    return [value for value in told if type_of(value) in types]


def are_disjoint(one: Any, other: Any, scope: Scope) -> bool:
    """Tell whether no value is of both; where it is not plain, they may have one."""
    if one is False or other is False:
        return True
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return False
    scope.spend()
    for this, that in ((one, other), (other, one)):
        if "$ref" in this:
            with scope.followed(this["$ref"]) as found:
                if found is not None and are_disjoint(found, that, scope):
                    return True
            # In some drafts nothing else counts beside it.
            return False
    if not types_of(one) & types_of(other):
        return True
    for this, that in ((one, other), (other, one)):
        all_of = this.get("allOf")
        if isinstance(all_of, list) and any(are_disjoint(part, that, scope) for part in all_of):
            return True
        for name in ("anyOf", "oneOf"):
            some = this.get(name)
            if isinstance(some, list) and all(are_disjoint(part, that, scope) for part in some):
                return True
    return _values_differ(one, other, scope) or _members_differ(one, other, scope)


def _values_differ(one: Mapping[str, Any], other: Mapping[str, Any], scope: Scope) -> bool:
    these, those = values_of(one, scope), values_of(other, scope)
    if these is None or those is None:
        return False
    return not set(map(key_of, these)) & set(map(key_of, those))


def _members_differ(one: Mapping[str, Any], other: Mapping[str, Any], scope: Scope) -> bool:
    """Tell whether objects must have a member that cannot be of both."""
    if types_of(one) & types_of(other) != {"object"}:
        return False
    members, others = one.get("properties"), other.get("properties")
    if not isinstance(members, Mapping) or not isinstance(others, Mapping):
        return False
    required = {*texts_of(one.get("required")), *texts_of(other.get("required"))}
    shared = sorted(required & members.keys() & others.keys())
    return any(are_disjoint(members[name], others[name], scope) for name in shared)
