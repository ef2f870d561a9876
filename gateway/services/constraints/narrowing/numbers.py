"""Numbers: bounds, values and multiples that the library would not read as they are written.

It reads numbers as doubles, some of them rounded, writes patterns for what is between bounds, and
knows multiples of up to nine digits. So a bound is drawn in to one that it reads, a
value that it would write otherwise is left out, and of other multiples some are told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal, localcontext
from typing import Any, Final

from gateway.services.constraints.narrowing.scope import CannotBeHeld, Instead, Scope, any_of
from gateway.services.constraints.narrowing.values import TYPES, only, types_of

_LARGEST: Final = 10**15
_LARGEST_VALUE: Final = 2**62
_SMALLEST: Final = 1e-9
_EXACT: Final = 2**53
_MOST_DIGITS: Final = 22
_MOST_PLACES: Final = 9
_LARGEST_FACTOR: Final = 2**32 - 1
_MOST_TOLD: Final = 64
_LOW: Final = ("minimum", "exclusiveMinimum")
_HIGH: Final = ("maximum", "exclusiveMaximum")


def bounded(schema: Mapping[str, Any], scope: Scope) -> Instead | None:
    """Draw bounds in."""
    drawn: dict[str, float] = {}
    for names, sign in ((_LOW, 1), (_HIGH, -1)):
        for name in names:
            bound = schema.get(name)
            if not isinstance(bound, int | float) or isinstance(bound, bool):
                continue
            inner = _drawn_up(sign * bound)
            if inner is None:
                scope.beyond.add(name)
                others = only(types_of(schema) - {"number"})
                return Instead(frozenset({*_LOW, *_HIGH}), [any_of(others)])
            if inner != sign * bound:
                drawn[name] = sign * inner
    return Instead(frozenset(), (), drawn) if drawn else None


def _drawn_up(bound: float) -> float | None:
    """Return the least bound that is as large and can be written; None: there is none."""
    if bound > _LARGEST:
        return None
    if bound < -_LARGEST:
        return -_LARGEST
    if 0 < abs(bound) < _SMALLEST:
        return _SMALLEST if bound > 0 else 0
    return bound


def valued(schema: Mapping[str, Any], scope: Scope) -> Instead | None:
    """Leave values out that hold a number which is no double. Raises: `CannotBeHeld`: all do."""
    for name in ("const", "enum"):
        told = schema.get(name) if name == "enum" else [schema.get(name)]
        if name not in schema or not isinstance(told, list):
            continue
        kept = [value for value in told if _is_readable(value)]
        if told and not kept:
            raise CannotBeHeld(name, "holds a number of too many digits")
        if len(kept) < len(told):
            return Instead(frozenset(), (), {name: kept})
    return None


def _is_readable(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_readable, value))
    if isinstance(value, Mapping):
        return all(map(_is_readable, value.values()))
    return not isinstance(value, int | float) or _is_written(value)


def _is_written(number: float) -> bool:
    """Tell whether the library writes a number as it is.

    It reads the digits as an integer, and that times a power of ten, each of which has to be a
    double: it rounds twice.
    """
    if number == 0 or isinstance(number, bool):
        return True
    if isinstance(number, float) and not math.isfinite(number):
        return False
    if number % 1 == 0:
        return abs(number) <= _LARGEST_VALUE and int(float(number)) == number
    _, digits, exponent = Decimal(repr(number)).as_tuple()
    assert isinstance(exponent, int), f"{number} is no number of JSON"
    return int("".join(map(str, digits))) <= _EXACT and -exponent <= _MOST_DIGITS


def multiplied(schema: Mapping[str, Any], scope: Scope) -> Instead | None:
    """Tell some multiples of what the library does not know multiples of."""
    factor = schema["multipleOf"]
    this = frozenset({"multipleOf"})
    if "number" not in types_of(schema):
        return Instead(this)
    is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
    if not is_number or factor <= 0 or _is_known(factor):
        return None
    told = _multiples(factor, *(_end(schema, names) for names in (_LOW, _HIGH)))
    return Instead(this, [any_of([*only(TYPES - {"number"}), {"enum": told}])])


def _end(schema: Mapping[str, Any], names: tuple[str, str]) -> float | None:
    bounds = [schema[name] for name in names if name in schema]
    numbers = [each for each in bounds if isinstance(each, int | float)]
    return None if not numbers else (max if names == _LOW else min)(numbers)


def _is_known(factor: float) -> bool:
    """Tell whether the library finds the digits of a factor, in the way that it looks for them."""
    if factor > _LARGEST_FACTOR:
        return False
    scaled, exponent = float(factor), 0
    while scaled % 1 and scaled <= _LARGEST_FACTOR:
        scaled, exponent = scaled * 10, exponent + 1
    if scaled > _LARGEST_FACTOR or exponent > _MOST_PLACES:
        return False
    return Decimal(scaled).scaleb(-exponent) == Decimal(repr(factor))


def _multiples(factor: float, low: float | None, high: float | None) -> list[float]:
    """Return multiples from the lower bound on, or up to the upper one, or around nothing, that are
    doubles and come out whole when doubles are divided."""
    if not _SMALLEST <= factor <= _LARGEST:
        return [0]
    if low is not None:
        first = math.ceil(low / factor)
    else:
        first = -_MOST_TOLD // 2 if high is None else math.floor(high / factor) - _MOST_TOLD + 1
    told: list[float] = []
    with localcontext(prec=50):
        for times in range(first, first + _MOST_TOLD):
            exact = Decimal(repr(factor)) * times
            near = int(exact) if exact == exact.to_integral_value() else float(exact)
            is_written = _is_written(near) and Decimal(repr(near)) == exact
            if is_written and near / factor == times:
                told.append(near)
    return told
