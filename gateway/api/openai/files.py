"""`/v1/files`: what tenants upload for their batches, and what these give them.

An upload goes from its connection to the storage piece by piece; nobody waits for it but its own
client. What is refused is read on, for a file's length at most, as most clients write all before
they read; where that is not its end, the answer ends the connection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final
from uuid import UUID

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.api.access import Authenticates, tenant_only
from gateway.api.body import ClientGone
from gateway.api.form import FileForm
from gateway.api.openai.byte_ranges import asked_range
from gateway.api.openai.file_names import clean_name, disposition
from gateway.api.openai.file_schemas import (
    DEFAULT_LIMIT,
    MAX_EXPIRY_S,
    MAX_LIMIT,
    MIN_EXPIRY_S,
    FileDeleted,
    FileList,
    file_object,
)
from gateway.api.openai.ids import FILE_ID, file_name, read_file_id
from gateway.domain import Principal
from gateway.domain.files import (
    BATCH_INPUT,
    MAX_BATCH_INPUT_BYTES,
    MAX_FILE_BYTES,
    UPLOAD_PURPOSES,
    StoredFile,
)
from gateway.errors import FileTooLarge, GatewayError, InvalidRequest
from gateway.services import loop_share
from gateway.services.files import FileService, UploadSaid
from gateway.services.files.service import batch_input_too_large
from gateway.services.health import OverloadWatch
from gateway.services.loop_share import LoopShare
from gateway.services.read_rate import ReadRate

# What one upload costs of the reads of a tenant: it waits for the disk three times.
UPLOAD_READS: Final = 5
# As many as are shown within a few milliseconds; clients ask for the next page by themselves.
PAGE_FILES: Final = 500
# A download may take a minute, and a second for each so many bytes.
_SEND_S: Final = 60.0
_SLOWEST_BYTES_PER_S: Final = 64 << 10
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS: Final = frozenset({"purpose", _ANCHOR, _SECONDS})


def file_routes(
    files: FileService,
    overload: OverloadWatch,
    auth: Authenticates,
    reads: ReadRate | None = None,
    loop_share: LoopShare | None = None,
) -> list[Route]:
    """Declare the routes; mount them in an application that handles `GatewayError`."""
    told = _Told(files)
    upload = Upload(files, overload, reads)
    one = "/v1/files/{file_id}"
    return [
        tenant_only("/v1/files", upload, auth, method="POST", loop_share=loop_share),
        *(
            tenant_only(path, app, auth, method=method, reads=reads, loop_share=loop_share)
            for path, method, app in (
                ("/v1/files", "GET", told.list),
                (one, "GET", told.show),
                (one, "DELETE", told.delete),
                (f"{one}/content", "GET", told.content),
            )
        ),
    ]


class Upload:
    """Take a file in."""

    def __init__(
        self, files: FileService, overload: OverloadWatch, reads: ReadRate | None = None
    ) -> None:
        self._files = files
        self._overload = overload
        self._reads = reads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal: Principal = scope["state"]["principal"]
        scope["state"]["is_unread"] = True
        self._overload.check_unread()
        if self._reads is not None:
            await self._reads.admit(principal.tenant_id, UPLOAD_READS)
        form = FileForm(scope, receive, fields=_FIELDS, max_file_bytes=MAX_FILE_BYTES)
        try:
            file = await self._take(principal.tenant_id, form)
        except ClientGone:
            return
        finally:
            scope["state"]["is_unread"] = not form.is_read
        await _json(file_object(file))(scope, receive, send)

    async def _take(self, tenant_id: UUID, form: FileForm) -> StoredFile:
        def said() -> UploadSaid:
            return UploadSaid(clean_name(form.filename or ""), _purpose(form), _expiry_s(form))

        try:
            if form.told_bytes is not None and form.told_bytes > MAX_FILE_BYTES + (1 << 20):
                raise FileTooLarge(f"A file may have {MAX_FILE_BYTES} bytes at most.", param="file")
            return await self._files.upload(
                tenant_id, _checked(form), said, told_bytes=form.told_bytes
            )
        except GatewayError:
            await form.drain()
            raise


class _Told:
    """Answer what is asked of files that are there."""

    def __init__(self, files: FileService) -> None:
        self._files = files

    async def list(self, request: Request) -> Response:
        asked = _Asked.read(request.query_params)
        page = await self._files.page(
            _tenant_of(request),
            limit=min(asked.limit, PAGE_FILES),
            after=asked.after,
            purpose=asked.purpose,
            is_ascending=asked.is_ascending,
        )
        data = [file_object(file) for file in page.data]
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return _json(
            FileList(data=data, first_id=first, last_id=last, has_more=page.next is not None)
        )

    async def show(self, request: Request) -> Response:
        return _json(file_object(await self._file(request)))

    async def delete(self, request: Request) -> Response:
        file_id = read_file_id(request.path_params["file_id"])
        await self._files.delete(_tenant_of(request), file_id)
        return _json(FileDeleted(id=file_name(file_id)))

    async def content(self, request: Request) -> Response:
        file = await self._file(request)
        asked = asked_range(request.headers.get("range"), file.size_bytes)
        return FileContent(self._files, file, asked)

    async def _file(self, request: Request) -> StoredFile:
        file_id = read_file_id(request.path_params["file_id"])
        return await self._files.get(_tenant_of(request), file_id)


class FileContent(Response):
    """Send a file, or the part of it that `asked` has: the first byte and how many."""

    def __init__(self, files: FileService, file: StoredFile, asked: tuple[int, int] | None) -> None:
        self._files = files
        self._file = file
        self._offset_bytes, self._size_bytes = asked or (0, file.size_bytes)
        self.background = None
        self.status_code = 200 if asked is None else 206
        self.raw_headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", b"%d" % self._size_bytes),
            (b"content-disposition", disposition(file.filename)),
            (b"accept-ranges", b"bytes"),
            (b"etag", b'"%s"' % file.sha256.hex().encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
        ]
        if asked is not None:
            last = self._offset_bytes + self._size_bytes - 1
            told = f"bytes {self._offset_bytes}-{last}/{file.size_bytes}"
            self.raw_headers.append((b"content-range", told.encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        if scope["method"] == "HEAD":
            await send(start)
            await send({"type": "http.response.body", "body": b""})
            return
        opened = self._files.opened(
            self._file, offset_bytes=self._offset_bytes, size_bytes=self._size_bytes
        )
        async with opened as chunks:
            # Asked for before the head is sent: a file that is gone is still a 404.
            first = await anext(chunks, b"")
            await send(start)
            # What is left unsent ends the connection, as its length was told.
            with suppress(TimeoutError):
                async with asyncio.timeout(_SEND_S + self._size_bytes / _SLOWEST_BYTES_PER_S):
                    await _send_all(first, chunks, send)


async def _send_all(first: bytes, chunks: AsyncGenerator[bytes, None], send: Send) -> None:
    await send({"type": "http.response.body", "body": first, "more_body": True})
    async for chunk in chunks:
        await loop_share.turn()
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


class _Asked(msgspec.Struct):
    """Hold what a list was asked for."""

    limit: int
    after: UUID | None
    purpose: str | None
    is_ascending: bool

    @classmethod
    def read(cls, params: QueryParams) -> _Asked:
        """Read the query. Raises: `InvalidRequest` with the parameter's name."""
        for name, _ in params.multi_items():
            if name not in ("limit", "after", "purpose", "order"):
                raise InvalidRequest(f"Unknown query parameter: '{name[:64]}'.", param=name[:64])
        limit, order = params.get("limit", str(DEFAULT_LIMIT)), params.get("order", "desc")
        if not re.fullmatch("[0-9]{1,9}", limit) or not 1 <= int(limit) <= MAX_LIMIT:
            raise InvalidRequest(f"'limit' must be from 1 to {MAX_LIMIT}.", param="limit")
        if order not in ("asc", "desc"):
            raise InvalidRequest("'order' must be asc or desc.", param="order")
        after = params.get("after")
        if after is not None and not re.fullmatch(FILE_ID, after):
            raise InvalidRequest("'after' must be the id of a file.", param="after")
        after_id = None if after is None else read_file_id(after, param="after")
        return cls(int(limit), after_id, params.get("purpose"), order == "asc")


async def _checked(form: FileForm) -> AsyncGenerator[bytes, None]:
    """Yield a form's file, and refuse it as soon as what it says is known to be wrong."""
    size_bytes = 0
    async for chunk in form.chunks():
        size_bytes += len(chunk)
        if "purpose" in form.values:
            is_for_batch = _purpose(form) == BATCH_INPUT
            if is_for_batch and size_bytes > MAX_BATCH_INPUT_BYTES:
                raise batch_input_too_large()
        yield chunk


def _purpose(form: FileForm) -> str:
    purpose = form.values.get("purpose")
    if purpose is None:
        raise InvalidRequest(
            "The form has no 'purpose'.", param="purpose", code="missing_required_parameter"
        )
    if purpose not in UPLOAD_PURPOSES:
        raise InvalidRequest(
            f"'purpose' must be one of {', '.join(UPLOAD_PURPOSES)}.", param="purpose"
        )
    return purpose


def _expiry_s(form: FileForm) -> int | None:
    anchor, seconds = form.values.get(_ANCHOR), form.values.get(_SECONDS)
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidRequest(f"'{_ANCHOR}' must be created_at.", param=_ANCHOR)
    is_number = seconds is not None and re.fullmatch("[0-9]{1,9}", seconds) is not None
    if not is_number or not MIN_EXPIRY_S <= int(seconds or 0) <= MAX_EXPIRY_S:
        raise InvalidRequest(
            f"'{_SECONDS}' must be a whole number from {MIN_EXPIRY_S} to {MAX_EXPIRY_S}.",
            param=_SECONDS,
        )
    return int(seconds or 0)


def _tenant_of(request: Request) -> UUID:
    principal: Principal = request.scope["state"]["principal"]
    return principal.tenant_id


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
