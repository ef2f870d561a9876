"""Batches whose requests came in one body, as Anthropic has them, over the same queue.

The requests are kept as a file of the tenant's, a line each, and a batch is made of that as of any
other; so a batch for `/v1/messages` that was made of an uploaded file is one of these too. How many
requests there are stands in its metadata: one that ends before it was validated has no items.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Final
from uuid import UUID

from gateway.domain import Principal
from gateway.domain.batch import Batch, BatchState
from gateway.domain.files import BATCH_INPUT
from gateway.domain.page import Page
from gateway.errors import FileInUse, FileNotFound, NotFound
from gateway.services.batches.input_lines import InputLines
from gateway.services.batches.service import BatchService, NewBatch
from gateway.services.fair_pool import FairPool
from gateway.services.files import FileService, UploadSaid

ENDPOINT: Final = "/v1/messages"
_WINDOW: Final = "24h"
_PARAM: Final = "message_batch_id"
_DAY_S: Final = 86_400
_NUM_REQUESTS: Final = "requests"
# Of a line of results: an answer of a batch may have four, and its frame some bytes.
_MAX_LINE_BYTES: Final = 8 << 20
_REST_RATIO: Final = 3.0

# Writes a result of a line of a batch's files; None: it says nothing.
WriteLine = Callable[[bytes], bytes | None]


class MessageBatches:
    """Make, list, delete and read batches for `/v1/messages`; `pool` is where lines are written."""

    def __init__(self, batches: BatchService, files: FileService, pool: FairPool) -> None:
        self._batches = batches
        self._files = files
        self._pool = pool

    async def create(
        self, principal: Principal, parts: list[bytes], num_requests: int, request_id: UUID
    ) -> Batch:
        """Make a batch of lines that are good; `parts` are emptied as they are stored.

        Raises: as `FileService.upload` and `BatchService.create`; nothing is left of it then.
        """

        async def chunks() -> AsyncIterator[bytes]:
            parts.reverse()
            while parts:
                yield parts.pop()

        said = UploadSaid(_file_name(request_id), BATCH_INPUT, 30 * _DAY_S)
        size_bytes = sum(map(len, parts))
        file = await self._files.upload(
            principal.tenant_id, chunks(), lambda: said, told_bytes=size_bytes
        )
        asked = NewBatch(
            file.id,
            ENDPOINT,
            _WINDOW,
            metadata={_NUM_REQUESTS: str(num_requests)},
            output_expires_after_s=29 * _DAY_S,
            request_id=request_id,
        )
        try:
            return await self._batches.create(principal, asked)
        except BaseException:
            await self._remove(principal.tenant_id, file.id)
            raise

    async def get(self, tenant_id: UUID, batch_id: UUID) -> Batch:
        """Return a batch. Raises: `NotFound`, also of one for another endpoint."""
        return _of_messages(await self._batches.get(tenant_id, batch_id, param=_PARAM))

    async def page(
        self, tenant_id: UUID, *, limit: int, after: UUID | None, before: UUID | None
    ) -> Page[Batch]:
        """Return batches, the newest first: the first ones, or those next to one.

        Raises: `NotFound`: there is none that is named.
        """
        page = await self._batches.page(
            tenant_id,
            limit=limit,
            after=after if before is None else before,
            after_param="after_id" if before is None else "before_id",
            endpoint=ENDPOINT,
            is_ascending=before is not None,
        )
        return page if before is None else Page(page.data[::-1], page.next)

    async def cancel(self, tenant_id: UUID, batch_id: UUID) -> Batch:
        """Have a batch cancelled; one that has ended stays as it is. Raises: `NotFound`."""
        await self.get(tenant_id, batch_id)
        return await self._batches.cancel(tenant_id, batch_id)

    async def delete(self, tenant_id: UUID, batch_id: UUID) -> None:
        """Forget a batch with its results. Raises: `NotFound`, `BatchNotEnded`."""
        await self.get(tenant_id, batch_id)
        batch = await self._batches.delete(tenant_id, batch_id)
        for file_id in (batch.output_file_id, batch.error_file_id):
            if file_id is not None:
                await self._remove(tenant_id, file_id)
        with contextlib.suppress(FileNotFound):
            given = await self._files.get(tenant_id, batch.draft.input_file_id)
            # What somebody uploaded is theirs to remove.
            if given.filename == _file_name(batch.id):
                await self._remove(tenant_id, given.id)

    async def results(self, batch: Batch, write: WriteLine) -> AsyncGenerator[bytes, None]:
        """Yield the results of a batch that has ended, each line of its files as `write` has it.

        One that ended before its requests were items has them from its input.
        Raises: `FileNotFound`; as `FileService.opened`.
        """
        file_ids = [batch.output_file_id, batch.error_file_id]
        if not batch.num_items:
            file_ids = [batch.draft.input_file_id]
        for file_id in file_ids:
            if file_id is not None:
                async with aclosing(self._lines(batch.tenant_id, file_id, write)) as parts:
                    async for part in parts:
                        yield part

    async def _lines(
        self, tenant_id: UUID, file_id: UUID, write: WriteLine
    ) -> AsyncGenerator[bytes, None]:
        file = await self._files.get(tenant_id, file_id)
        lines = InputLines(_MAX_LINE_BYTES)

        def written(chunk: bytes | None) -> bytes:
            read: Iterable[bytes | None] = (
                line.text for line in (lines.end() if chunk is None else lines.feed(chunk))
            )
            results = (write(text) for text in read if text is not None)
            return b"".join(result for result in results if result is not None)

        opened = self._files.opened(file, offset_bytes=0, size_bytes=file.size_bytes)
        async with opened as chunks:
            async for chunk in chunks:
                if part := await self._run(tenant_id, partial(written, chunk)):
                    yield part
            if part := await self._run(tenant_id, partial(written, None)):
                yield part

    async def _run(self, tenant_id: UUID, work: Callable[[], bytes]) -> bytes:
        return await self._pool.run(tenant_id, work, rest_ratio=_REST_RATIO)

    async def _remove(self, tenant_id: UUID, file_id: UUID) -> None:
        """Remove a file; one that is gone, or that another batch reads, is left as it is."""
        with contextlib.suppress(FileNotFound, FileInUse):
            await self._files.delete(tenant_id, file_id)


def num_requests(batch: Batch) -> int:
    """Count the requests of a batch, also of one that has no items yet, or never had."""
    told = (batch.draft.metadata or {}).get(_NUM_REQUESTS, "")
    is_number = told.isascii() and told.isdigit() and len(told) <= 6
    return batch.num_items or (int(told) if is_number else 0)


def never_ran(batch: Batch) -> BatchState | None:
    """Return how a batch ended of which nothing was ever run; None for any other."""
    return batch.state if batch.ended_at is not None and not batch.num_items else None


def _of_messages(batch: Batch) -> Batch:
    if batch.draft.endpoint != ENDPOINT:
        raise NotFound("There is no such batch.", param=_PARAM)
    return batch


def _file_name(request_id: UUID) -> str:
    return f"msgbatch_{request_id.hex}.jsonl"
