"""Memory of the KV cache, taken from the system before a step needs it.

A cache is allocated as large as it may get, and the system gives a page when it is first touched. A
step that writes a block that nobody had before touches one of each layer, twice: with pages of
2 MiB it waited for eight to be found and cleared, 20 to 45 ms with the demo model on a virtual
machine, while a step takes five. So where the blocks in use come to a page, the next one of every
layer is asked for (`MADV_POPULATE_WRITE`, Linux 5.14), which changes nothing that is in it.

Threads: one of its own each time, which ends with it; what it touches lives as long as it does. The
scheduler takes blocks in order until all have been used, so this happens once for each page. A
process that ends waits for it: a thread that is stopped within torch takes the process along.

Failures: a system without the call, or without the memory, gives pages when they are touched, as
it would have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from torch import Tensor

from engine.native.madvise import PAGE_BYTES, find_madvise

_POPULATE_WRITE: Final = 23
# Of the smallest pages, which ranges are given in.
_UNIT_BYTES: Final = 4096


class PagesAhead:
    """Ask for pages of caches, each [num_layers, num_blocks, …] and contiguous.

    `madvise` is the system's call, for tests another one.
    """

    def __init__(
        self, caches: Sequence[Tensor], madvise: Callable[[int, int, int], int] | None = None
    ) -> None:
        self._caches = caches
        self._madvise = find_madvise() if madvise is None else madvise
        self._num_blocks = caches[0].shape[1]
        block_bytes = caches[0][0, 0].nbytes
        # Blocks of one page of a layer.
        self._step = max(1, PAGE_BYTES // block_bytes)
        self._num_asked = 0
        self._thread: threading.Thread | None = None

    def reach(self, block_id: int) -> None:
        """See to it that pages up to the one after this block's are there soon."""
        wanted = min((block_id // self._step + 2) * self._step, self._num_blocks)
        if wanted <= self._num_asked or self._madvise is None:
            return
        blocks = range(self._num_asked, wanted)
        self._num_asked = wanted
        self._thread = threading.Thread(
            target=self._populate, args=(blocks, self._thread), name="pages"
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until what was asked for is there."""
        if self._thread is not None:
            self._thread.join()

    def _populate(self, blocks: range, before: threading.Thread | None) -> None:
        assert self._madvise is not None
        if before is not None:
            before.join()
        # Short calls: who takes memory meanwhile waits for the one under way.
        for first in blocks[:: self._step]:
            last = min(first + self._step, blocks.stop)
            for part in (layer[first:last] for cache in self._caches for layer in cache):
                begin = part.data_ptr() // _UNIT_BYTES * _UNIT_BYTES
                end = part.data_ptr() + part.nbytes
                if self._madvise(begin, end - begin, _POPULATE_WRITE):
                    return
