"""Numbers as people write them: `8k` is 8,000 and `8K` 8,192, as vLLM reads them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_NUMBER: Final = re.compile(r"(?P<digits>\d{1,15}(?:\.\d{1,15})?)(?P<unit>[kKmMgGtT]?)", re.ASCII)
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}


def read_number(text: str) -> int:
    """Return a whole number, counted in a unit of 1000 (`k`, `m`, `g`, `t`) or 1024 (capitals).

    Raises: `ValueError`: it is none; a part of a unit of 1024 is none either.
    """
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text[:32]!r} is no whole number, as 4096, 4k (4,000) or 4K (4,096)")
    digits, unit = Decimal(found["digits"]), found["unit"]
    if unit.isupper() and "." in found["digits"]:
        raise ValueError(
            f"{text!r} is a part of a unit of 1024: write it out, or as {text.lower()} in units of "
            "1000"
        )
    base = 1024 if unit.isupper() else 1000
    number = digits * (base ** _POWERS[unit.lower()] if unit else 1)
    if number != int(number):
        raise ValueError(f"{text!r} is no whole number")
    return int(number)
