"""How large a schema, a pattern and a grammar may be, judged before anything is compiled of them.

What compiles in milliseconds and stays cheap with every token is far below these; what is above
costs seconds, or a mask of ten milliseconds. A schema is walked once, without recursion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.errors import ConstraintRefused

MAX_SCHEMA_BYTES: Final = 64 << 10
MAX_SCHEMA_DEPTH: Final = 32
MAX_PROPERTIES: Final = 1000
MAX_PROPERTIES_OF_ONE: Final = 400
MAX_ENUM_VALUES: Final = 2000
MAX_BRANCHES: Final = 256
MAX_PATTERN_CHARS: Final = 2048
# Of lengths and counts, as `minItems`; what may be more at most may be so much.
MAX_COUNT: Final = 100_000
MAX_REGEX_CHARS: Final = 8 << 10
MAX_GRAMMAR_BYTES: Final = 64 << 10
MAX_CHOICES: Final = 2000
MAX_CHOICE_CHARS: Final = 1024

# Of which type values are that a bound is for; where others may be, those are left out.
_LEAST: Final = {"minLength": "string", "minItems": "array", "minProperties": "object"}
_BRANCHES: Final = ("anyOf", "oneOf", "allOf", "prefixItems")


def check_schema(schema: Mapping[str, Any], *, param: str) -> None:
    """Refuse a schema that holds too much, or that is nothing but itself.

    Raises: `ConstraintRefused`: it names the keyword.
    """
    if schema.get("$ref") == "#":
        raise ConstraintRefused("'$ref': the schema is itself, so no value has it.", param=param)
    num_properties = num_values = num_branches = 0
    waiting: list[tuple[Any, int]] = [(schema, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise _too_much("nested", f"{MAX_SCHEMA_DEPTH} levels deep", param)
        if isinstance(value, list):
            waiting += [(each, depth + 1) for each in value]
            continue
        if not isinstance(value, Mapping):
            continue
        num_properties += _check_properties(value, param)
        num_values += _size(value, "enum")
        num_branches += sum(_size(value, name) for name in _BRANCHES)
        _check_numbers(value, param)
        waiting += [(each, depth + 1) for each in value.values()]
    for name, number, most in (
        ("properties", num_properties, MAX_PROPERTIES),
        ("enum", num_values, MAX_ENUM_VALUES),
        ("anyOf, oneOf, allOf", num_branches, MAX_BRANCHES),
    ):
        if number > most:
            raise _too_much(name, f"of {most} in all", param)


def _check_properties(schema: Mapping[str, Any], param: str) -> int:
    number = sum(_size(schema, name) for name in ("properties", "patternProperties"))
    if number > MAX_PROPERTIES_OF_ONE:
        raise _too_much("properties", f"of {MAX_PROPERTIES_OF_ONE} in one object", param)
    return number


def _check_numbers(schema: Mapping[str, Any], param: str) -> None:
    for name, type_ in _LEAST.items():
        number = schema.get(name)
        is_above = isinstance(number, int | float) and number > MAX_COUNT
        if is_above and schema.get("type") in (type_, [type_]):
            raise _too_much(name, f"of {MAX_COUNT}", param)
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and len(pattern) > MAX_PATTERN_CHARS:
        raise _too_much("pattern", f"of {MAX_PATTERN_CHARS} characters", param)


def _size(schema: Mapping[str, Any], name: str) -> int:
    value = schema.get(name)
    return len(value) if isinstance(value, Mapping | list) else 0


def _too_much(name: str, bound: str, param: str) -> ConstraintRefused:
    return ConstraintRefused(f"'{name}': the schema is above the bound {bound}.", param=param)
