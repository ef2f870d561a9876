"""`not`, `if` and `oneOf`: what is of one schema and not of another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.services.constraints.narrowing.disjoint import are_disjoint
from gateway.services.constraints.narrowing.outside import outside
from gateway.services.constraints.narrowing.scope import Instead, Scope, any_of


def negated(schema: Mapping[str, Any], scope: Scope) -> Instead | None:
    """Write what is known to be outside of the schema."""
    found = outside(schema["not"], scope)
    return Instead(frozenset({"not"}), [any_of(found.schemas)]) if found.is_known else None


def conditional(schema: Mapping[str, Any], scope: Scope) -> Instead:
    """Write two alternatives; the second is what is known to be outside of the condition."""
    condition = schema["if"]
    met = [condition, schema["then"]] if "then" in schema else [condition]
    ways = [{"allOf": met}]
    if unmet := outside(condition, scope).schemas:
        ways.append({"allOf": [any_of(unmet), schema.get("else", True)]})
    return Instead(frozenset({"if", "then", "else"}), [any_of(ways)])


def one_of(schema: Mapping[str, Any], scope: Scope) -> Instead | None:
    """Write any of the branches where none has a value of another, or each without the others."""
    branches = schema["oneOf"]
    if not isinstance(branches, list):
        return None
    this = frozenset({"oneOf"})
    if all(
        are_disjoint(one, other, scope)
        for place, one in enumerate(branches)
        for other in branches[place + 1 :]
    ):
        return Instead(this, [any_of(branches)])
    unlike = [outside(branch, scope) for branch in branches]
    ways = []
    for place, branch in enumerate(branches):
        others = unlike[:place] + unlike[place + 1 :]
        if all(other.schemas for other in others):
            ways.append({"allOf": [branch, *(any_of(other.schemas) for other in others)]})
    is_known = bool(ways) or all(other.is_known for other in unlike)
    return Instead(this, [any_of(ways)]) if is_known else None
