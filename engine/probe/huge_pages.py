"""Weights in huge pages, on Linux: what every step reads from end to end.

A decode step reads all weights once, and with pages of 4 KiB a good part of that is looking them
up. Memory that has been filled is not moved into huge pages by itself soon, so the
system is asked to do it at once (`MADV_COLLAPSE`, Linux 6.1), page by page around each weight.

A hint, and no more: where the system has no such call, or too little free memory, nothing
changes but the speed. The compiled operators allocate their layouts in huge pages already, see
`engine/native/csrc/memory.h`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from engine.native.madvise import PAGE_BYTES, find_madvise

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
