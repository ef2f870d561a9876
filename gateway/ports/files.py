"""Files: their rows, and their bytes."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Collection,
)
from typing import Protocol
from uuid import UUID

from gateway.domain.files import FileDraft, StoredFile, Written
from gateway.domain.page import Page, PageRequest

# Answers which of these files have a row.
IsKnown = Callable[[Collection[UUID]], Awaitable[Collection[UUID]]]


class FileStorage(Protocol):
    """Keep the bytes of files under their ids.

    Methods raise `StorageUnavailable` where it does not answer or is full.
    """

    async def write(
        self, file_id: UUID, chunks: AsyncIterable[bytes], *, max_bytes: int
    ) -> Written:
        """Store what comes, durably; nothing stays of it if this raises or is cancelled.

        Raises: `FileTooLarge`; what `chunks` raises.
        """
        ...

    def read(
        self, file_id: UUID, *, offset_bytes: int = 0, size_bytes: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Return a file in chunks of at most 1 MiB; close it where it is left early.

        Raises: `StoredFileMissing`.
        """
        ...

    async def remove(self, file_ids: Collection[UUID]) -> None:
        """Remove files; one that is not there is no error."""
        ...

    async def sweep(self, *, older_than_s: float, is_known: IsKnown) -> int:
        """Remove what nobody knows and was not written to for so long; return how many."""
        ...


class FileStore(Protocol):
    """Hold the rows of files. One that is not whole yet is seen by `begin` and `sweep` alone."""

    async def begin(self, draft: FileDraft) -> None:
        """Note a file before its first byte, so that what a crash leaves is found."""
        ...

    async def complete(
        self, tenant_id: UUID, file_id: UUID, written: Written, *, max_stored_bytes: int | None
    ) -> StoredFile:
        """Make a file seen. Raises: `StorageFull`: the tenant would have more than so much."""
        ...

    async def get(self, tenant_id: UUID, file_id: UUID) -> StoredFile | None: ...

    async def page(
        self,
        tenant_id: UUID,
        request: PageRequest,
        *,
        purpose: str | None = None,
        is_ascending: bool = False,
    ) -> Page[StoredFile]: ...

    async def remove(self, tenant_id: UUID, file_id: UUID) -> bool:
        """Forget a file, whole or not; False: there is none.

        Raises: `FileInUse`: a batch is reading it.
        """
        ...

    async def stored_bytes(self, tenant_id: UUID) -> int: ...

    async def sweep(self, limit: int, *, unready_for_s: float) -> Collection[UUID]:
        """Forget files that expired or whose upload died, and return their ids."""
        ...

    async def known(self, file_ids: Collection[UUID]) -> Collection[UUID]: ...
