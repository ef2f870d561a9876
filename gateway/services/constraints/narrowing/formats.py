"""Formats that the library does not know, each told by one that takes less or by a pattern."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.services.constraints.narrowing.scope import Instead, Scope
from gateway.services.constraints.narrowing.values import TYPES, beyond, only, types_of

_NARROWER: Final = {
    "idn-email": "email",
    "idn-hostname": "hostname",
    "full-date": "date",
    "full-time": "time",
    "iri": "uri",
    "iri-reference": "uri",
    "uri-reference": "uri",
    "uri-template": "uri",
}
_SAY_TEXT: Final = frozenset({"const", "enum", "maxLength", "minLength", "pattern", "type"})
_POINTER: Final = "(/([^/~]|~[01])*)*"
_TWO: Final = {"hour": "([01][0-9]|2[0-3])", "minute": "[0-5][0-9]", "second": "[0-5][0-9]"}
_TIME: Final = f"{_TWO['hour']}:{_TWO['minute']}:{_TWO['second']}"
_OFFSET: Final = f"[+-]{_TWO['hour']}:{_TWO['minute']}"
_PATTERNS: Final = {
    "color": "^#[0-9a-fA-F]{6}$",
    # The parts of a time by their names in RFC 3339.
    "date-fullyear": "^[0-9]{4}$",
    "date-mday": "^(0[1-9]|1[0-9]|2[0-8])$",
    "date-month": "^(0[1-9]|1[0-2])$",
    "json-pointer": f"^{_POINTER}$",
    # Letters, classes and how often; nothing that one language of patterns reads another way.
    "partial-time": f"^{_TIME}$",
    "regex": r"^(([A-Za-z0-9_ ,:;=@/-]|\\[dwsDWS.]|\.|\[[A-Za-z0-9_]+\])[+*?]?)*$",
    "relative-json-pointer": f"^(0|[1-9][0-9]*)(#|{_POINTER})$",
    **{f"time-{name}": f"^{pattern}$" for name, pattern in _TWO.items()},
    "time-numoffset": f"^{_OFFSET}$",
    "time-offset": f"^(Z|{_OFFSET})$",
    "time-secfrac": "^\\.[0-9]+$",
}


def impossible(schema: Mapping[str, Any], scope: Scope) -> Instead | None:
    """Leave texts out that would have to be longer than any that is written."""
    return beyond(schema, "minLength", "string", scope)


def told(schema: Mapping[str, Any], scope: Scope) -> Instead | None:
    """Write a format that the library knows."""
    this, name = frozenset({"format"}), schema["format"]
    if "string" not in types_of(schema):
        return Instead(this)
    if not isinstance(name, str):
        return None
    if name in _NARROWER:
        return Instead(this, [], {"format": _NARROWER[name]})
    if name in _PATTERNS:
        return Instead(this, [{"pattern": _PATTERNS[name]}])
    # Where nothing says that a text is wanted, anything else will do.
    return None if schema.keys() & _SAY_TEXT else Instead(this, only(TYPES - {"string"}))
