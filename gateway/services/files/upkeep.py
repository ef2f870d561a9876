"""What becomes of files by themselves: they expire, and what crashes left is swept.

Rows go first and bytes after them. What is left in between by a process that dies, or by a storage
that is away, has no row and is found by the walk through the storage, a quarter of an hour later.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from gateway.background import JITTER, Background
from gateway.errors import StorageUnavailable, StoreUnavailable
from gateway.ports import FileStorage, FileStore

logger = logging.getLogger(__name__)

EXPIRED_INTERVAL_S: Final = 60.0
ORPHANS_INTERVAL_S: Final = 900.0
# Of the slowest upload, two writes are a minute apart; the output of a batch may take longer.
ORPHAN_AGE_S: Final = 900.0
UNREADY_S: Final = 3600.0
_ROWS: Final = 200


class FileUpkeep:
    """Sweep while `running` is entered."""

    def __init__(self, files: FileStore, storage: FileStorage) -> None:
        self._files = files
        self._storage = storage

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Do both again and again."""
        outages = (StoreUnavailable, StorageUnavailable)
        async with (
            Background(
                "the sweep of expired files",
                self.sweep_rows,
                interval_s=EXPIRED_INTERVAL_S,
                jitter=JITTER,
                outages=outages,
            ),
            Background(
                "the sweep of files that nobody knows",
                self.sweep_orphans,
                interval_s=ORPHANS_INTERVAL_S,
                jitter=JITTER,
                at_once=True,
                outages=outages,
            ),
        ):
            yield

    async def sweep_rows(self, unready_for_s: float = UNREADY_S) -> int:
        """Remove files that expired and what died before it was one; return how many."""
        num_removed = 0
        while gone := await self._files.sweep(_ROWS, unready_for_s=unready_for_s):
            await self._storage.remove(gone)
            num_removed += len(gone)
        return num_removed

    async def sweep_orphans(self, older_than_s: float = ORPHAN_AGE_S) -> int:
        """Remove bytes that belong to no row; return how many files they were."""
        num_removed = await self._storage.sweep(
            older_than_s=older_than_s, is_known=self._files.known
        )
        if num_removed:
            logger.warning("%d files that nobody knows are removed", num_removed)
        return num_removed
