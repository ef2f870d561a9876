"""What the system is told of memory: `madvise` of the C library."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Final, cast

# Of a huge page.
PAGE_BYTES: Final = 2 << 20


def find_madvise() -> Callable[[int, int, int], int] | None:
    """Find the call in the C library; it returns 0 where it has done what was asked."""
    if sys.platform != "linux":
        return None
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return cast("Callable[[int, int, int], int]", madvise)
