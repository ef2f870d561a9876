"""What tenants ask of batches: to make, show, list and cancel them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID, uuid4

from gateway.domain import Principal
from gateway.domain.batch import Batch, BatchDraft
from gateway.domain.files import BATCH_INPUT
from gateway.domain.page import Page, PageRequest
from gateway.errors import (
    BatchNotEnded,
    IdempotencyMismatch,
    InvalidRequest,
    NotFound,
    PermissionDenied,
)
from gateway.ports import BatchStore, FileStore
from gateway.services.batches.item_line import ENDPOINTS

# What has not ended of a tenant's: batches, and the requests in them.
MAX_OPEN_BATCHES: Final = 500
MAX_OPEN_ITEMS: Final = 2_000_000
_MIN_WINDOW_S, _MAX_WINDOW_S = 60, 7 * 86_400
MIN_EXPIRY_S, MAX_EXPIRY_S = 3_600, 30 * 86_400
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,5})([mh])", re.ASCII)
_SECONDS: Final = {"m": 60, "h": 3_600}
_MAX_PAIRS, _MAX_KEY_CHARS, _MAX_VALUE_CHARS = 16, 64, 512


@dataclass(frozen=True, slots=True)
class NewBatch:
    """Say what somebody asks for, as it was sent, and with which request.

    A new batch has that request's id: whoever sees one of its items finds how it was made.
    """

    input_file_id: UUID
    endpoint: str
    completion_window: str
    metadata: Mapping[str, str] | None = None
    output_expires_after_s: int | None = None
    idempotency_key: str | None = None
    request_id: UUID = field(default_factory=uuid4)


class BatchService:
    """Answer for the tenant that a principal speaks for; `wake` is told of what is to be done."""

    def __init__(
        self,
        batches: BatchStore,
        files: FileStore,
        wake: Callable[[], None],
        *,
        max_batches: int = MAX_OPEN_BATCHES,
    ) -> None:
        self._batches = batches
        self._files = files
        self._wake = wake
        self._max_batches = max_batches

    async def create(self, principal: Principal, asked: NewBatch) -> Batch:
        """Make a batch that waits to be validated.

        Raises: `PermissionDenied`: the key may not; `InvalidRequest`; `FileNotFound`;
        `TenantLimited`: too many have not ended; `IdempotencyMismatch`.
        """
        check_allowed(principal)
        draft = _draft(principal, asked)
        await self._check_purpose(principal.tenant_id, asked.input_file_id)
        batch = await self._batches.create(draft, max_batches=self._max_batches)
        if not _is_same(batch.draft, draft):
            raise IdempotencyMismatch(param="Idempotency-Key")
        self._wake()
        return batch

    async def get(self, tenant_id: UUID, batch_id: UUID, *, param: str = "batch_id") -> Batch:
        """Return a batch of a tenant. Raises: `NotFound`, which names `param`."""
        return _found(await self._batches.get(tenant_id, batch_id), param)

    async def page(
        self,
        tenant_id: UUID,
        *,
        limit: int,
        after: UUID | None = None,
        after_param: str = "after",
        endpoint: str | None = None,
        is_ascending: bool = False,
    ) -> Page[Batch]:
        """Return a tenant's batches, of one endpoint or of all; `after` is the last one of a page.

        The newest come first unless told. Raises: `NotFound`, which names `after_param`: there is
        no batch `after`.
        """
        cursor = None
        if after is not None:
            last = await self.get(tenant_id, after, param=after_param)
            cursor = (last.created_at.isoformat(), str(last.id))
        return await self._batches.page(
            tenant_id, PageRequest(limit, cursor), endpoint=endpoint, is_ascending=is_ascending
        )

    async def delete(self, tenant_id: UUID, batch_id: UUID) -> Batch:
        """Forget a batch, and return it as it was; its files stay.

        Raises: `NotFound`, `BatchNotEnded`.
        """
        batch = await self.get(tenant_id, batch_id)
        if not await self._batches.delete(tenant_id, batch_id):
            raise BatchNotEnded("A batch can be deleted once it has ended.")
        return batch

    async def cancel(self, tenant_id: UUID, batch_id: UUID) -> Batch:
        """Have a batch cancelled; one that has ended, or nearly, stays as it is.

        Raises: `NotFound`.
        """
        batch = _found(await self._batches.cancel(tenant_id, batch_id))
        self._wake()
        return batch

    async def _check_purpose(self, tenant_id: UUID, file_id: UUID) -> None:
        """Check what a file is for. One that is not there may have been a batch's, by its key."""
        file = await self._files.get(tenant_id, file_id)
        if file is not None and file.purpose != BATCH_INPUT:
            raise InvalidRequest(
                f"The input file's purpose must be '{BATCH_INPUT}', not '{file.purpose}'.",
                param="input_file_id",
            )


def check_allowed(principal: Principal) -> None:
    """Raise `PermissionDenied` where a key may not make batches."""
    if not principal.allows_batch:
        raise PermissionDenied("This key may not make batches.", code="batch_not_allowed")


def _draft(principal: Principal, asked: NewBatch) -> BatchDraft:
    if asked.endpoint not in ENDPOINTS:
        served = ", ".join(ENDPOINTS)
        raise InvalidRequest(
            f"Batches are served for {served}; not for what 'endpoint' says.", param="endpoint"
        )
    expires_after_s = asked.output_expires_after_s
    if expires_after_s is not None and not MIN_EXPIRY_S <= expires_after_s <= MAX_EXPIRY_S:
        raise InvalidRequest(
            f"'output_expires_after.seconds' must be {MIN_EXPIRY_S} to {MAX_EXPIRY_S}.",
            param="output_expires_after.seconds",
        )
    return BatchDraft(
        id=asked.request_id,
        tenant_id=principal.tenant_id,
        key_id=principal.key_id,
        endpoint=asked.endpoint,
        input_file_id=asked.input_file_id,
        completion_window_s=window_s(asked.completion_window),
        metadata=_checked_metadata(asked.metadata),
        output_expires_after_s=expires_after_s,
        idempotency_key=asked.idempotency_key,
    )


def window_s(text: str) -> int:
    """Return the seconds of a window: `24h`, `90m`. Raises: `InvalidRequest`."""
    if match := _WINDOW.fullmatch(text):
        seconds = int(match[1]) * _SECONDS[match[2]]
        if _MIN_WINDOW_S <= seconds <= _MAX_WINDOW_S:
            return seconds
    raise InvalidRequest(
        "'completion_window' must be '24h', or another number of hours or minutes, as '90m', from "
        "1m to 168h.",
        param="completion_window",
    )


def _checked_metadata(metadata: Mapping[str, str] | None) -> Mapping[str, str] | None:
    if metadata is None:
        return None
    if len(metadata) > _MAX_PAIRS:
        raise InvalidRequest(f"'metadata' must have at most {_MAX_PAIRS} pairs.", param="metadata")
    for name, value in metadata.items():
        if len(name) > _MAX_KEY_CHARS or len(value) > _MAX_VALUE_CHARS:
            raise InvalidRequest(
                f"'metadata' must have names of at most {_MAX_KEY_CHARS} characters and values "
                f"of at most {_MAX_VALUE_CHARS}.",
                param="metadata",
            )
        if "\x00" in name or "\x00" in value:
            raise InvalidRequest("'metadata' must have no NUL characters.", param="metadata")
    return metadata


def _is_same(one: BatchDraft, other: BatchDraft) -> bool:
    """Tell whether two ask for the same, whoever made them and whenever."""

    def asked(draft: BatchDraft) -> tuple[object, ...]:
        return (
            draft.endpoint,
            draft.input_file_id,
            draft.completion_window_s,
            dict(draft.metadata or {}),
            draft.output_expires_after_s,
        )

    return asked(one) == asked(other)


def _found(batch: Batch | None, param: str = "batch_id") -> Batch:
    if batch is None:
        raise NotFound("There is no such batch.", param=param)
    return batch
