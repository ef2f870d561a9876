"""The rows of files in PostgreSQL, each its tenant's by row-level security.

A row is there before the first byte of its file and is `is_ready` after the last one: what is in
between nobody sees. What a tenant stores is summed as a file of it becomes ready, while no other of
it does. A small file counts for `LEAST_BYTES`, as it takes a row and a name.

An input is not removed while a batch reads it: who removes it holds its row and looks for such a
batch then, and who makes a batch holds that row too (`FOR KEY SHARE`), so that one sees the other.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    and_,
    delete,
    exists,
    func,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.files import (
    LEAST_BYTES,
    FileDraft,
    StoredFile,
    WholeFile,
    Written,
    id_time,
)
from gateway.domain.page import Page, PageRequest
from gateway.errors import FileInUse, FileNotFound, StorageFull
from gateway.store.batch_tables import batches, files
from gateway.store.database import Database
from gateway.store.keyset import Keyset
from gateway.store.pools import Purpose
from gateway.store.tables import tenants

_ROW: Final = files.c
_KEPT: Final = (
    _ROW.id,
    _ROW.tenant_id,
    _ROW.filename,
    _ROW.purpose,
    _ROW.size_bytes,
    _ROW.sha256,
    _ROW.created_at,
    _ROW.expires_at,
)
_ORDER: Final = (_ROW.created_at, _ROW.id)
_OLDEST_FIRST, _NEWEST_FIRST = Keyset(_ORDER), Keyset(_ORDER, descending=True)
# What tenants ask for is theirs to wait for, beside the reports they ask for.
_ASKED: Final = Purpose.REPORTS
_LOCK_TENANT: Final = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")


class SqlFiles:
    """Implement `FileStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, draft: FileDraft) -> None:
        made_at = id_time(draft.id)
        values = {"expires_at": draft.expires_at}
        if made_at is not None:
            values["created_at"] = made_at
        row = insert(files).values(
            id=draft.id,
            tenant_id=draft.tenant_id,
            filename=draft.filename,
            purpose=draft.purpose,
            **values,
        )
        async with self._database.tenant(draft.tenant_id, _ASKED) as connection:
            await connection.execute(row)

    async def complete(
        self, tenant_id: UUID, file_id: UUID, written: Written, *, max_stored_bytes: int | None
    ) -> StoredFile:
        finished = (
            update(files)
            .where(_ROW.tenant_id == tenant_id, _ROW.id == file_id, ~_ROW.is_ready)
            .values(is_ready=True, size_bytes=written.size_bytes, sha256=written.sha256)
            .returning(*_KEPT)
        )
        async with self._database.tenant(tenant_id, _ASKED) as connection:
            if max_stored_bytes is not None:
                await connection.execute(_LOCK_TENANT, {"name": f"files of {tenant_id}"})
                stored = await _stored_bytes(connection, tenant_id)
                if stored + max(written.size_bytes, LEAST_BYTES) > max_stored_bytes:
                    raise StorageFull
            row = (await connection.execute(finished)).one_or_none()
        if row is None:
            raise FileNotFound(detail="a file was forgotten before it was whole")
        return _file_of(row)

    async def get(self, tenant_id: UUID, file_id: UUID) -> StoredFile | None:
        query = select(*_KEPT).where(_seen_by(tenant_id), _ROW.id == file_id)
        async with self._database.tenant(tenant_id, _ASKED) as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else _file_of(row)

    async def page(
        self,
        tenant_id: UUID,
        request: PageRequest,
        *,
        purpose: str | None = None,
        is_ascending: bool = False,
    ) -> Page[StoredFile]:
        query = select(*_KEPT).where(_seen_by(tenant_id))
        if purpose is not None:
            query = query.where(_ROW.purpose == purpose)
        order = _OLDEST_FIRST if is_ascending else _NEWEST_FIRST
        async with self._database.tenant(tenant_id, _ASKED) as connection:
            return await order.page(connection, query, request, _file_of)

    async def remove(self, tenant_id: UUID, file_id: UUID) -> bool:
        # One that is not whole yet too: an upload that is given up.
        held = select(_ROW.id).where(_ROW.tenant_id == tenant_id, _ROW.id == file_id)
        held = held.with_for_update()
        async with self._database.tenant(tenant_id, _ASKED) as connection:
            if (await connection.execute(held)).one_or_none() is None:
                return False
            # A statement of its own, to see what was made while this one waited for the row.
            read = select(_is_read(batches.c.input_file_id == file_id))
            if await connection.scalar(read):
                raise FileInUse
            await connection.execute(delete(files).where(_ROW.id == file_id))
        return True

    async def stored_bytes(self, tenant_id: UUID) -> int:
        async with self._database.tenant(tenant_id, _ASKED) as connection:
            return await _stored_bytes(connection, tenant_id)

    async def sweep(self, limit: int, *, unready_for_s: float) -> Collection[UUID]:
        died = and_(~_ROW.is_ready, _ROW.created_at < func.now() - timedelta(seconds=unready_for_s))
        archived = select(tenants.c.id).where(tenants.c.archived_at.is_not(None))
        expired = and_(
            _ROW.is_ready,
            # Of a tenant that is gone nobody could ever remove one.
            or_(_ROW.expires_at <= func.now(), _ROW.tenant_id.in_(archived)),
            ~_is_read(batches.c.input_file_id == _ROW.id),
        )
        held = (
            select(_ROW.id).where(or_(died, expired)).limit(limit).with_for_update(skip_locked=True)
        )
        async with self._database.platform(_ASKED) as connection:
            found = (await connection.execute(held)).scalars().all()
            # Asked again: a batch may have been made of one before it was held.
            gone = (
                delete(files)
                .where(_ROW.id.in_(found), ~_is_read(batches.c.input_file_id == _ROW.id))
                .returning(_ROW.id)
            )
            return (await connection.execute(gone)).scalars().all() if found else ()

    async def known(self, file_ids: Collection[UUID]) -> Collection[UUID]:
        query = select(_ROW.id).where(_ROW.id.in_(file_ids))
        async with self._database.platform(_ASKED) as connection:
            return set((await connection.execute(query)).scalars())


async def insert_file(connection: AsyncConnection, file: WholeFile) -> None:
    """Have a file be seen, whatever its tenant stores, with this transaction."""
    draft, written = file.draft, file.written
    await connection.execute(
        insert(files).values(
            id=draft.id,
            tenant_id=draft.tenant_id,
            filename=draft.filename,
            purpose=draft.purpose,
            expires_at=draft.expires_at,
            is_ready=True,
            size_bytes=written.size_bytes,
            sha256=written.sha256,
        )
    )


async def _stored_bytes(connection: AsyncConnection, tenant_id: UUID) -> int:
    total: Select[tuple[Any]] = select(
        func.coalesce(func.sum(func.greatest(_ROW.size_bytes, LEAST_BYTES)), 0)
    ).where(_ROW.tenant_id == tenant_id, _ROW.is_ready)
    return int(await connection.scalar(total) or 0)


def _seen_by(tenant_id: UUID) -> ColumnElement[bool]:
    """Match what a tenant is told of: files that are whole and have not expired."""
    is_alive = or_(_ROW.expires_at.is_(None), _ROW.expires_at > func.now())
    return and_(_ROW.tenant_id == tenant_id, _ROW.is_ready, is_alive)


def _is_read(of_file: ColumnElement[bool]) -> ColumnElement[bool]:
    """Tell whether a batch that has not ended reads a file."""
    return exists().where(of_file, batches.c.ended_at.is_(None))


def _file_of(row: Row[*tuple[Any, ...]]) -> StoredFile:
    return StoredFile(**row._mapping)
