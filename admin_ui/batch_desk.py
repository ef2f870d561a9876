"""Batches by forms: a file and what is to be done with it, through the services of the API.

A form goes from its connection to the storage piece by piece, as an upload of the API does; of the
file no more is held than the piece that is being read. Whose batch it is is known before anything
is read, and by which key before the file is: a batch runs as its key does, and is paid for as its
requests are. Its lines are checked afterwards, where those of every batch are. The work is charged
to the tenant's share of the event loop, whoever sends the form.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Final, Protocol
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.access import check_address
from gateway.api.form import FileForm
from gateway.api.openai.file_names import clean_name
from gateway.api.openai.files import FileContent
from gateway.domain import Principal
from gateway.domain.batch import Batch
from gateway.domain.files import BATCH_INPUT, MAX_BATCH_INPUT_BYTES
from gateway.errors import (
    AuthenticationFailed,
    Conflict,
    GatewayError,
    IdempotencyMismatch,
    InvalidRequest,
)
from gateway.services.batches import BatchService, FailedLines, NewBatch
from gateway.services.batches.item_line import ENDPOINTS
from gateway.services.batches.service import check_allowed, window_s
from gateway.services.files import FileService, UploadSaid
from gateway.services.files.service import batch_input_too_large
from gateway.services.health import OverloadWatch
from gateway.services.loop_share import LoopShare

FIELDS: Final = frozenset({"form_token", "once", "key", "endpoint", "completion_window"})
_ONCE: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
# What stands beside the file in a form, generously.
_FRAME_BYTES: Final = 1 << 20


class ChoosesKeys(Protocol):
    async def authenticate(self, kid: str) -> Principal: ...


class BatchDesk:
    """Take in batches, cancel them, and hand out what they gave."""

    def __init__(
        self,
        files: FileService,
        batches: BatchService,
        failed_lines: FailedLines,
        keys: ChoosesKeys,
        overload: OverloadWatch,
        loop_share: LoopShare,
    ) -> None:
        self._files = files
        self._batches = batches
        self._failed_lines = failed_lines
        self._keys = keys
        self._overload = overload
        self._loop_share = loop_share

    def form(self, request: Request) -> FileForm:
        """Begin to read a form. Raises: `InvalidRequest`: it is none."""
        return FileForm(
            request.scope, request.receive, fields=FIELDS, max_file_bytes=MAX_BATCH_INPUT_BYTES
        )

    async def submit(self, request: Request, form: FileForm, tenant_id: UUID) -> Batch:
        """Make a batch of a form's file; if this raises there is neither.

        Raises: `InvalidRequest`, `PermissionDenied`: a field, or the key; `FileTooLarge`;
        `StorageFull`, `TenantLimited`, `Overloaded`; `Conflict`: this form has made one already;
        `ClientGone`.
        """
        self._overload.check_unread()
        account = self._loop_share.of(tenant_id)
        await account.turn()
        try:
            return await account.charged(self._submit(request, form, tenant_id))
        except GatewayError:
            # Most browsers write all before they read.
            await form.drain()
            raise

    async def retry(self, request: Request, values: Mapping[str, str], batch: Batch) -> Batch:
        """Make a batch of the lines of another that gave no answer; if this raises there is none.

        `values` are the form's: a key, a window, and its `once`. The rest is as it was.
        Raises: as `submit`, and `InvalidRequest` where there is nothing to run again.
        """
        self._overload.check_unread()
        account = self._loop_share.of(batch.tenant_id)
        await account.turn()
        return await account.charged(self._retry(request, dict(values), batch))

    async def cancel(self, tenant_id: UUID, batch_id: UUID) -> Batch:
        """Have a batch of a tenant cancelled. Raises: `NotFound`."""
        return await self._batches.cancel(tenant_id, batch_id)

    async def download(self, tenant_id: UUID, file_id: UUID) -> Response:
        """Return an answer that is a tenant's file. Raises: `FileNotFound`."""
        file = await self._files.get(tenant_id, file_id)
        return _ChargedAnswer(FileContent(self._files, file, None), self._loop_share, tenant_id)

    async def _submit(self, request: Request, form: FileForm, tenant_id: UUID) -> Batch:
        if (form.told_bytes or 0) > MAX_BATCH_INPUT_BYTES + _FRAME_BYTES:
            raise batch_input_too_large()
        payer: list[Principal] = []

        async def check() -> None:
            payer.append(await self._payer(request, form.values, tenant_id))

        def said() -> UploadSaid:
            return UploadSaid(clean_name(form.filename or ""), BATCH_INPUT)

        file = await self._files.upload(
            tenant_id, _after_fields(form, check), said, told_bytes=form.told_bytes
        )
        return await self._create(payer[0], _asked(request, form.values, file.id))

    async def _retry(self, request: Request, values: dict[str, str], batch: Batch) -> Batch:
        values["endpoint"] = batch.draft.endpoint
        payer = await self._payer(request, values, batch.tenant_id)
        name = clean_name(f"retry_of_batch_{batch.id.hex}.jsonl")
        async with aclosing(self._failed_lines.of(batch)) as lines:
            file = await self._files.upload(
                batch.tenant_id, lines, lambda: UploadSaid(name, BATCH_INPUT)
            )
        asked = _asked(request, values, file.id)
        draft = batch.draft
        asked = replace(
            asked, metadata=draft.metadata, output_expires_after_s=draft.output_expires_after_s
        )
        return await self._create(payer, asked)

    async def _create(self, payer: Principal, asked: NewBatch) -> Batch:
        """Make a batch of a file that was stored for it alone."""
        try:
            return await self._batches.create(payer, asked)
        except BaseException as exc:
            # One that a batch reads after all stays: it is in use.
            with suppress(GatewayError):
                await self._files.delete(payer.tenant_id, asked.input_file_id)
            if isinstance(exc, IdempotencyMismatch):
                raise Conflict(
                    "A batch was made of this form already. Begin anew to make another."
                ) from None
            raise

    async def _payer(self, request: Request, values: dict[str, str], tenant_id: UUID) -> Principal:
        """Return who a form's key speaks for, once all its fields are good.

        Raises: `InvalidRequest`, `PermissionDenied`, `StoreUnavailable`.
        """
        once = values.get("once")
        if once is not None and _ONCE.fullmatch(once) is None:
            raise InvalidRequest("The form cannot be read.")
        try:
            principal = await self._keys.authenticate(values.get("key", ""))
        except AuthenticationFailed:
            raise _no_key() from None
        if principal.tenant_id != tenant_id:
            raise _no_key()
        check_address(request.scope, principal.cidrs, principal.tenant_cidrs)
        check_allowed(principal)
        window_s(values.setdefault("completion_window", "24h"))
        if values.setdefault("endpoint", "") not in ENDPOINTS:
            raise InvalidRequest("Choose an endpoint.", param="endpoint")
        return principal


class _ChargedAnswer(Response):
    """Send another answer as work of a tenant."""

    def __init__(self, answer: Response, loop_share: LoopShare, tenant_id: UUID) -> None:
        super().__init__()
        self._answer = answer
        self._loop_share = loop_share
        self._tenant_id = tenant_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        account = self._loop_share.of(self._tenant_id)
        await account.turn()
        await account.charged(self._answer(scope, receive, send))


async def _after_fields(
    form: FileForm, check: Callable[[], Awaitable[None]]
) -> AsyncGenerator[bytes, None]:
    """Yield a form's file, once `check` has found its fields good, which stand before it."""
    size_bytes, is_checked = 0, False
    async for chunk in form.chunks():
        if not is_checked:
            await check()
            is_checked = True
        size_bytes += len(chunk)
        if size_bytes > MAX_BATCH_INPUT_BYTES:
            raise batch_input_too_large()
        yield chunk
    if not is_checked:
        # Nothing was chosen: what else is wrong is said later.
        raise InvalidRequest("Choose a file with at least one line.", param="file")


def _asked(request: Request, values: Mapping[str, str], input_file_id: UUID) -> NewBatch:
    """Spell out a form; made again by the same one, a batch is the same."""
    once = values.get("once")
    return NewBatch(
        input_file_id=input_file_id,
        endpoint=values["endpoint"],
        completion_window=values["completion_window"],
        idempotency_key=None if once is None else f"form-{once}",
        request_id=UUID(hex=request.scope["state"]["request_id"]),
    )


def _no_key() -> InvalidRequest:
    return InvalidRequest("Choose an active key of this tenant.", param="key")
