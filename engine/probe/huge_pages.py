"""Weights in huge pages, on Linux: what every step reads from end to end.

A decode step reads all weights once, and with pages of 4 KiB a good part of that is looking them
up. Memory that has been filled is not moved into huge pages by itself soon, so the
system is asked to do it at once (`MADV_COLLAPSE`, Linux 6.1), page by page around each weight.

A hint, and no more: where the system has no such call, or too little free memory, nothing
changes but the speed. The compiled operators allocate their layouts in huge pages already, see
`engine/native/csrc/memory.h`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor

PAGE_BYTES = 2 << 20
_MADV_COLLAPSE = 25


def collapse(tensors: Iterable[Tensor]) -> int:
    """Move what tensors hold, packed ones included, into huge pages; says how many there are."""
    madvise = find_madvise()
    if madvise is None:
        return 0
    pages = {page for tensor in tensors for page in _pages(tensor)}
    done = [madvise(page * PAGE_BYTES, PAGE_BYTES, _MADV_COLLAPSE) == 0 for page in sorted(pages)]
    return sum(done)


def _pages(tensor: Tensor) -> range:
    """Number the huge pages that a tensor touches; none where it does not say where it lies."""
    try:
        if tensor.is_mkldnn:
            begin: int = torch.ops.mkldnn.data_ptr(tensor)
            size: int = torch.ops.mkldnn._nbytes(tensor)
        else:
            begin, size = tensor.data_ptr(), tensor.nbytes
    # Private operators of torch.
    except (AttributeError, RuntimeError):
        return range(0)
    return range(begin // PAGE_BYTES, -(-(begin + size) // PAGE_BYTES))


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
