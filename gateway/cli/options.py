"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import typer

DataDir = Annotated[
    Path | None, typer.Option(help="The data directory of a server on this machine.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NoHeader = Annotated[
    bool, typer.Option("--no-header", help="Print no line with the columns' names.")
]
IfVersion = Annotated[
    int | None,
    typer.Option(help="Change only what still has this version; otherwise a conflict."),
]

NANO_PER_USD: Final = 1_000_000_000

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>s|m|h|d|w)?", re.ASCII)
_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def segment(name: str) -> str:
    """Write a name as one segment of a URL's path."""
    return quote(name, safe="")


# Beyond it no budget is, and what has a million digits takes a second to read.
_MOST_USD: Final = Decimal(10**12)


def duration_s(text: str, option: str, *, may_be_zero: bool = False) -> float:
    """Read a duration, as `90s`; without a unit it is in seconds.

    Raises: `typer.BadParameter`.
    """
    found = _DURATION.fullmatch(text)
    seconds = float(found["number"]) * _SECONDS[found["unit"]] if found else -1.0
    if not 0 <= seconds < float("inf") or (seconds == 0 and not may_be_zero):
        raise typer.BadParameter(
            f"'{text}' is not a duration{'' if may_be_zero else ' above 0'}, as 90s, 30m, 12h, 7d "
            "or 2w",
            param_hint=option,
        )
    return seconds


def names(text: str) -> list[str]:
    """Split names at commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def nano_usd(text: str, option: str) -> int:
    """Read an amount of US dollars exactly. Raises: `typer.BadParameter`."""
    try:
        return usd_to_nano(Decimal(text))
    except (InvalidOperation, ValueError):
        raise typer.BadParameter(
            f"'{text}' is not an amount in US dollars, as 25 or 0.15, of 9 decimals at most",
            param_hint=option,
        ) from None


def usd_to_nano(usd: Decimal) -> int:
    """Return dollars in billionths. Raises: `ValueError`: below 0, too fine, or no number."""
    if not usd.is_finite() or usd < 0:
        raise ValueError("not an amount of 0 or more")
    if usd > _MOST_USD:
        raise ValueError("more than a trillion dollars")
    nano = usd * NANO_PER_USD
    if nano != int(nano):
        raise ValueError("finer than a billionth of a dollar")
    return int(nano)


def nano_to_usd(nano: int) -> str:
    """Write billionths of a dollar in dollars, exactly, without zeros at the end."""
    text = f"{Decimal(nano) / NANO_PER_USD:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
