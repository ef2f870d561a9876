"""Bounds of numbers in a request, refused with the field's name."""

from __future__ import annotations

from gateway.errors import InvalidRequest


def in_range(param: str, value: float | None, low: float, high: float, *, default: float) -> float:
    """Return a number between two bounds, or the default. Raises: `InvalidRequest`."""
    if value is None:
        return float(default)
    if not low <= value <= high:  # NaN fails this too
        raise InvalidRequest(
            f"'{param}' must be between {low:g} and {high:g}, not {value:g}.",
            param=param,
        )
    return float(value)


def int_in_range(param: str, value: int | None, low: int, high: int, *, default: int) -> int:
    """Return an integer between two bounds, or the default. Raises: `InvalidRequest`."""
    if value is None:
        return default
    if not low <= value <= high:
        raise InvalidRequest(
            f"'{param}' must be between {low} and {high}, not {shown(value)}.",
            param=param,
        )
    return value


def shown(value: int) -> str:
    """Spell a number in an error without echoing hundreds of digits."""
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}… ({len(text)} digits)"
