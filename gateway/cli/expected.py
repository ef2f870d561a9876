"""What a key of a file may hold, in words; the types are those that the file is read into.

msgspec says of `rpm = "60"` that it expected `int | null`, and of `models = "a"` that `a` is no
value of an enum, which is told to whoever knows those types and to nobody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import inspect

_WORDS: Final[Mapping[type[inspect.Type], str]] = {
    inspect.BoolType: "true or false",
    inspect.DateTimeType: "a time with its zone, as 2027-01-31T00:00:00Z",
    inspect.DecimalType: "a number",
    inspect.DictType: "a table",
    inspect.FloatType: "a number",
    inspect.IntType: "a whole number",
    inspect.StrType: 'a text, as "this"',
}
_MAX_CHARS: Final = 40


def expected(table: type[msgspec.Struct], key: str) -> str:
    """Return what a key of a table may hold. Raises: `KeyError`: there is no such key."""
    info = inspect.type_info(table)
    assert isinstance(info, inspect.StructType)
    return _words({field.name: field.type for field in info.fields}[key])


def found(value: object) -> str:
    """Return what is there instead, as it is written in TOML or nearly so, and not all of it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + "…"


def _words(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.UnionType):
        kinds = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        return " or ".join(map(_words, kinds))
    if isinstance(kind, inspect.ListType):
        return 'a list of texts, as ["this"]'
    if isinstance(kind, inspect.LiteralType):
        return " or ".join(f'"{value}"' for value in kind.values)
    if isinstance(kind, inspect.EnumType):
        return " or ".join(f'"{member.value}"' for member in kind.cls)
    return _WORDS[type(kind)]
