"""The audit log in PostgreSQL: appended to in the transaction of the change it tells of.

Every organisation has a chain: a record holds the hash of the one before it and, in its own,
everything that it says. Appending locks the chain's head to the end of the transaction, so the
numbers have no gaps and a change that fails leaves no record. Call `append` after every other lock
is taken: a transaction that waits for a row while it holds the head could wait in a circle.

The database refuses to change or remove a record, even to the tables' owner; who removes that guard
first is found by `verify`. What `verify` cannot find is a chain rewritten from some record to its
head: who must exclude that keeps a head (its number and hash) somewhere else.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, Row, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.admin import Actor, AuditEntry, AuditFilter, AuditRecord, AuditVerdict
from gateway.domain.page import Page, PageRequest
from gateway.store.database import Database
from gateway.store.keyset import Keyset
from gateway.store.pools import Purpose
from gateway.store.tables import audit_heads, audit_log

_NO_HASH: Final = bytes(32)
_EXACT: Final = 2**53
_VERIFY_ROWS: Final = 500
_NEWEST_FIRST: Final = Keyset((audit_log.c.seq,), descending=True)


class SqlAudit:
    """Implement `AuditStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, actor: Actor, entry: AuditEntry) -> AuditRecord:
        async with self._database.platform() as connection:
            return await append(connection, actor, entry)

    async def page(
        self, organisation_id: UUID, chosen: AuditFilter, request: PageRequest
    ) -> Page[AuditRecord]:
        query = select(audit_log).where(
            audit_log.c.organisation_id == organisation_id, *_conditions(chosen)
        )
        if chosen.tenant_id is None:
            async with self._database.platform(Purpose.REPORTS) as connection:
                return await _NEWEST_FIRST.page(connection, query, request, _record_of)
        async with self._database.tenant(chosen.tenant_id, Purpose.REPORTS) as connection:
            return await _NEWEST_FIRST.page(connection, query, request, _record_of)

    async def verify(self, organisation_id: UUID) -> AuditVerdict:
        async with self._database.platform(Purpose.REPORTS) as connection:
            # One statement, so that a record appended meanwhile is not taken for a forged one.
            last = select(func.max(audit_log.c.seq)).where(
                audit_log.c.organisation_id == organisation_id
            )
            query = select(
                audit_heads.c.seq, audit_heads.c.hash, last.scalar_subquery().label("last")
            ).where(audit_heads.c.organisation_id == organisation_id)
            head = (await connection.execute(query)).one_or_none()
            if head is None:
                return AuditVerdict(0, _NO_HASH)
            seq, previous_hash = 0, _NO_HASH
            while seq < head.seq:
                rows = (
                    select(audit_log)
                    .where(audit_log.c.organisation_id == organisation_id)
                    .where(audit_log.c.seq > seq, audit_log.c.seq <= head.seq)
                    .order_by(audit_log.c.seq)
                    .limit(_VERIFY_ROWS)
                )
                piece = (await connection.execute(rows)).all()
                for record in map(_record_of, piece):
                    if not _follows(record, seq, previous_hash):
                        return AuditVerdict(head.seq, head.hash, seq + 1)
                    seq, previous_hash = record.seq, record.hash
                if not piece:
                    return AuditVerdict(head.seq, head.hash, seq + 1)
        if previous_hash != head.hash:
            return AuditVerdict(head.seq, head.hash, head.seq)
        return AuditVerdict(head.seq, head.hash, None if head.last == seq else seq + 1)


async def append(connection: AsyncConnection, actor: Actor, entry: AuditEntry) -> AuditRecord:
    """Append to the organisation's chain in the caller's transaction, as `sluice_platform`."""
    first = upsert(audit_heads).values(organisation_id=entry.organisation_id, seq=1, hash=_NO_HASH)
    taken = first.on_conflict_do_update(
        index_elements=[audit_heads.c.organisation_id], set_={"seq": audit_heads.c.seq + 1}
    ).returning(audit_heads.c.seq, audit_heads.c.hash, func.clock_timestamp().label("at"))
    head = (await connection.execute(taken)).one()
    record = AuditRecord(
        seq=head.seq,
        at=head.at,
        actor=actor,
        entry=entry,
        previous_hash=head.hash,
        hash=chain_hash(head.seq, head.at, actor, entry, head.hash),
    )
    await connection.execute(insert(audit_log).values(_row_of(record)))
    await connection.execute(
        update(audit_heads)
        .where(audit_heads.c.organisation_id == entry.organisation_id)
        .values(hash=record.hash)
    )
    return record


def chain_hash(
    seq: int, at: datetime, actor: Actor, entry: AuditEntry, previous_hash: bytes
) -> bytes:
    """Hash everything that a record says, with the hash before it.

    JSON quotes what it holds, so no two records that differ are written the same way.
    """
    said = [
        seq,
        at.astimezone(UTC).isoformat(timespec="microseconds"),
        asdict(actor),
        {name: _comparable(value) for name, value in asdict(entry).items()},
        previous_hash.hex(),
    ]
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).digest()


def _follows(record: AuditRecord, seq: int, previous_hash: bytes) -> bool:
    expected = chain_hash(seq + 1, record.at, record.actor, record.entry, previous_hash)
    return (record.seq, record.previous_hash, record.hash) == (seq + 1, previous_hash, expected)


def _conditions(chosen: AuditFilter) -> list[ColumnElement[bool]]:
    log = audit_log.c
    equal = (
        (log.tenant_id, chosen.tenant_id),
        (log.actor, chosen.actor),
        (log.action, chosen.action),
        (log.object_kind, chosen.object_kind),
    )
    conditions = [column == value for column, value in equal if value is not None]
    if chosen.since is not None:
        conditions.append(log.at >= chosen.since)
    if chosen.until is not None:
        conditions.append(log.at < chosen.until)
    return conditions


def _comparable(value: Any) -> Any:  # JSON, or an id
    """Write a value as it comes back from the database: its JSON knows one kind of number."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        # What is whole is an integer, up to where a double no longer tells which.
        return int(value) if -_EXACT <= value <= _EXACT and value == int(value) else float(value)
    if isinstance(value, dict):
        return {name: _comparable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(one) for one in value]
    return value


def _row_of(record: AuditRecord) -> dict[str, Any]:
    entry, actor = record.entry, record.actor
    return {
        "organisation_id": entry.organisation_id,
        "seq": record.seq,
        "at": record.at,
        "actor": actor.name,
        "actor_role": actor.role,
        "ip": actor.ip,
        "request_id": actor.request_id,
        "action": entry.action,
        "object_kind": entry.object_kind,
        "object_id": entry.object_id,
        "tenant_id": entry.tenant_id,
        "before": entry.before,
        "after": entry.after,
        "previous_hash": record.previous_hash,
        "hash": record.hash,
    }


def _record_of(row: Row[*tuple[Any, ...]]) -> AuditRecord:
    return AuditRecord(
        seq=row.seq,
        at=row.at,
        actor=Actor(row.actor, row.actor_role, row.ip, row.request_id),
        entry=AuditEntry(
            action=row.action,
            object_kind=row.object_kind,
            object_id=row.object_id,
            organisation_id=row.organisation_id,
            tenant_id=row.tenant_id,
            before=row.before,
            after=row.after,
        ),
        previous_hash=row.previous_hash,
        hash=row.hash,
    )
