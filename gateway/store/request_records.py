"""Records of finished requests in PostgreSQL: written in batches, read by id or page by page.

The rows travel as one JSON document, as those of the ledger do. A record that is there already
stays. Who is bound to a tenant reads in a transaction that sees nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    Text,
    bindparam,
    cast,
    column,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.page import Page, PageRequest
from gateway.domain.request_record import Cause, RecordFilter, RequestRecord
from gateway.store.database import Database
from gateway.store.keyset import Keyset
from gateway.store.pools import Purpose
from gateway.store.tables import request_records, tenants

_RECORD: Final = request_records.c
_ORDER: Final = Keyset((_RECORD.at, _RECORD.request_id), descending=True)
_LISTED: Final = (
    *(one for one in _RECORD if one.name != "details"),
    tenants.c.name.label("tenant"),
    func.coalesce(_RECORD.details["limit"].astext, "").label("limit"),
)
# A record may outlive its tenant.
_JOINED: Final = request_records.outerjoin(tenants, tenants.c.id == _RECORD.tenant_id)
# Rows in the table's own type, so that JSON is read as its columns are.
_GIVEN: Final = func.jsonb_populate_recordset(
    literal_column("NULL::request_records"), cast(bindparam("rows", type_=Text), JSONB)
).table_valued(*(column(one.name, one.type) for one in _RECORD))
_INSERT: Final = (
    insert(request_records)
    .from_select([one.name for one in _RECORD], select(*_GIVEN.c))
    .on_conflict_do_nothing()
)

_encoder = msgspec.json.Encoder()


class SqlRequestRecords:
    """Implement `RequestRecordStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def insert(self, records: Sequence[RequestRecord]) -> int:
        if not records:
            return 0
        given = {"rows": _encoder.encode(records).decode()}
        async with self._database.platform(Purpose.REPORTS) as connection:
            return (await connection.execute(_INSERT, given)).rowcount

    async def get(
        self, organisation_id: UUID, request_id: UUID, *, within: UUID | None = None
    ) -> RequestRecord | None:
        query = (
            select(*_LISTED, _RECORD.details)
            .select_from(_JOINED)
            .where(_RECORD.request_id == request_id, *_whose(organisation_id, within))
        )
        async with self._opened(within) as connection:
            row = (await connection.execute(query.limit(1))).one_or_none()
        return None if row is None else _record_of(row)

    async def page(
        self,
        organisation_id: UUID,
        chosen: RecordFilter,
        request: PageRequest,
        *,
        within: UUID | None = None,
    ) -> Page[RequestRecord]:
        query: Select[*tuple[Any, ...]] = (
            select(*_LISTED)
            .select_from(_JOINED)
            .where(*_whose(organisation_id, within), *_conditions(chosen))
        )
        async with self._opened(within) as connection:
            return await _ORDER.page(connection, query, request, _record_of)

    def _opened(self, within: UUID | None) -> AbstractAsyncContextManager[AsyncConnection]:
        if within is None:
            return self._database.platform(Purpose.REPORTS)
        return self._database.tenant(within, Purpose.REPORTS)


def _whose(organisation_id: UUID, within: UUID | None) -> list[ColumnElement[bool]]:
    whose = [_RECORD.organisation_id == organisation_id]
    return whose if within is None else [*whose, _RECORD.tenant_id == within]


def _conditions(chosen: RecordFilter) -> list[ColumnElement[bool]]:
    equal = (
        (_RECORD.tenant_id, chosen.tenant_id),
        (_RECORD.status, chosen.status),
        (_RECORD.cause, chosen.cause),
    )
    conditions = [column == value for column, value in equal if value is not None]
    if chosen.has_missed is not None:
        num_missed = func.cardinality(_RECORD.missed)
        # As the indexes have it, no parameter: a plan for all parameters would not use them.
        none: ColumnElement[int] = literal_column("0")
        conditions.append(num_missed > none if chosen.has_missed else num_missed == none)
    if chosen.since is not None:
        conditions.append(_RECORD.at >= chosen.since)
    if chosen.until is not None:
        conditions.append(_RECORD.at < chosen.until)
    return conditions


def _record_of(row: Row[*tuple[Any, ...]]) -> RequestRecord:
    found: dict[str, Any] = dict(row._mapping)
    return RequestRecord(
        **found
        | {
            "cause": None if found["cause"] is None else Cause(found["cause"]),
            "missed": tuple(found["missed"]),
        }
    )
