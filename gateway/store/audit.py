"""The audit log in PostgreSQL, read and walked; `audit_chain` has what its records are made of.

The database refuses to change or remove a record, even to the tables' owner; who removes that guard
first is found by `verify`. What a walk alone cannot find is a chain that was cut off at its end:
who must exclude that keeps a head (its number and hash) somewhere else, and asks whether it is
still in the chain.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, Row, func, select

from gateway.domain.admin import (
    Actor,
    AuditEntry,
    AuditFilter,
    AuditHead,
    AuditRecord,
    AuditVerdict,
)
from gateway.domain.page import Page, PageRequest
from gateway.store.audit_chain import NO_HASH, AuditChain
from gateway.store.database import Database
from gateway.store.keyset import Keyset
from gateway.store.pools import Purpose
from gateway.store.tables import audit_heads, audit_log
from gateway.turns import by_turns

# Read together, and walked along in turns with whatever else the event loop has.
_VERIFY_ROWS: Final = 100
_NEWEST_FIRST: Final = Keyset((audit_log.c.seq,), descending=True)


class SqlAudit:
    """Implement `AuditStore`."""

    def __init__(self, database: Database, chain: AuditChain) -> None:
        self._database = database
        self._chain = chain

    async def append(self, actor: Actor, entry: AuditEntry) -> AuditRecord:
        async with self._database.platform() as connection:
            return await self._chain.append(connection, actor, entry)

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

    async def head(self, organisation_id: UUID) -> AuditHead | None:
        return await self._head(audit_log.c.organisation_id == organisation_id)

    async def head_was(self, organisation_id: UUID, seq: int) -> AuditHead | None:
        return await self._head(
            audit_log.c.organisation_id == organisation_id, audit_log.c.seq == seq
        )

    async def verify(
        self, organisation_id: UUID, heads: Collection[AuditHead] = ()
    ) -> AuditVerdict:
        async with self._database.platform(Purpose.REPORTS) as connection:
            # One statement, so that a record appended meanwhile is not taken for a forged one.
            last = select(func.max(audit_log.c.seq)).where(
                audit_log.c.organisation_id == organisation_id
            )
            query = select(
                audit_heads.c.seq, audit_heads.c.hash, last.scalar_subquery().label("last")
            ).where(audit_heads.c.organisation_id == organisation_id)
            head = (await connection.execute(query)).one_or_none()
            walk = _Walk(self._chain, heads)
            if head is None:
                return walk.verdict(0, NO_HASH)
            while walk.seq < head.seq:
                rows = (
                    select(audit_log)
                    .where(audit_log.c.organisation_id == organisation_id)
                    .where(audit_log.c.seq > walk.seq, audit_log.c.seq <= head.seq)
                    .order_by(audit_log.c.seq)
                    .limit(_VERIFY_ROWS)
                )
                piece = (await connection.execute(rows)).all()
                if not piece:
                    return walk.verdict(head.seq, head.hash, walk.seq + 1)
                async for row in by_turns(piece):
                    if not walk.takes(_record_of(row)):
                        return walk.verdict(head.seq, head.hash, walk.seq + 1)
        if walk.hash != head.hash:
            return walk.verdict(head.seq, head.hash, head.seq)
        # No record behind the head, and a seal behind what has no key.
        is_whole = head.last == head.seq and not walk.is_unsealed
        return walk.verdict(head.seq, head.hash, None if is_whole else head.seq + 1)

    async def _head(self, *where: ColumnElement[bool]) -> AuditHead | None:
        newest = (
            select(audit_log.c.seq, audit_log.c.hash, audit_log.c.at)
            .where(*where)
            .order_by(audit_log.c.seq.desc())
            .limit(1)
        )
        async with self._database.platform(Purpose.REPORTS) as connection:
            row = (await connection.execute(newest)).one_or_none()
        return None if row is None else AuditHead(row.seq, row.hash, row.at)


class _Walk:
    """Follow a chain from its beginning, with an eye on heads that were told of it."""

    def __init__(self, chain: AuditChain, heads: Collection[AuditHead]) -> None:
        self._chain = chain
        self._missing = [head for head in heads if head.seq > 0]
        self._unkeyed_seq = 0
        self.seq, self.hash = 0, NO_HASH

    @property
    def is_unsealed(self) -> bool:
        """Tell whether all records up to here were made without a key."""
        return 0 < self.seq == self._unkeyed_seq

    def takes(self, record: AuditRecord) -> bool:
        """Go on to a record; False: it does not follow."""
        if not self._chain.follows(record, self.seq, self.hash, unkeyed_seq=self._unkeyed_seq):
            return False
        self.seq, self.hash = record.seq, record.hash
        if record.pepper_id is None:
            self._unkeyed_seq = record.seq
        here = AuditHead(record.seq, record.hash)
        self._missing = [head for head in self._missing if head != here]
        return True

    def verdict(self, seq: int, head_hash: bytes, broken_seq: int | None = None) -> AuditVerdict:
        """Conclude: a chain that is broken tells nothing of heads behind the break."""
        missing = [head.seq for head in self._missing if broken_seq is None]
        return AuditVerdict(
            seq, head_hash, broken_seq, self._unkeyed_seq, min(missing, default=None)
        )


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
        pepper_id=row.pepper_id,
    )
