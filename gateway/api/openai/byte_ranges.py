"""`Range` of a download: one range of bytes, or all of it. RFC 9110 §14.2."""

from __future__ import annotations

import re
from typing import Final

from gateway.errors import RangeNotSatisfiable

_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)


def asked_range(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """Return the first byte and how many; None: all of it, as for what is no range or several.

    Raises: `RangeNotSatisfiable`: there is no such byte.
    """
    if header is None:
        return None
    found = _RANGE.fullmatch(header.strip())
    if found is None or found.group(0) == "bytes=-":
        return None
    first, last = found.groups()
    if not first:
        start, end = max(0, size_bytes - int(last)), size_bytes
    else:
        start, end = int(first), min(size_bytes, int(last) + 1 if last else size_bytes)
        if last and int(last) < int(first):
            return None
    if start >= size_bytes:
        raise RangeNotSatisfiable(size_bytes)
    return start, end - start
