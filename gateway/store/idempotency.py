"""Idempotency records in PostgreSQL.

Who inserts the row runs the request. A row without a status whose lease has passed belonged to a
process that died, and one past its time to nobody: either goes to the next who asks, in the same
statement. Time is the database's, so that clocks of gateways need not agree.

An answer comes with the row of the ledger that bills it, in its transaction (`answer_records`).
Where two runs of one request came to their end, because the first was taken for dead, the first to
be stored is the one that was answered, and the other is not billed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Row,
    and_,
    bindparam,
    case,
    delete,
    func,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.idempotency import KEEP_S, Claim, KeyedRecord, SealedAnswer
from gateway.domain.usage import KeyedRow
from gateway.store.database import Database
from gateway.store.pools import Purpose
from gateway.store.tables import idempotency

_ROW: Final = idempotency.c
_TRIES: Final = 3


class SqlIdempotency:
    """Implement `IdempotencyStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(
        self, claim: Claim, body_hash: bytes, *, lease_s: float, keep_s: float
    ) -> KeyedRecord | None:
        fresh = {
            "body_hash": body_hash,
            "request_id": claim.run_id,
            "lease_until": func.now() + timedelta(seconds=lease_s),
            "expires_at": func.now() + timedelta(seconds=keep_s),
        }
        died = and_(_ROW.status.is_(None), _ROW.lease_until <= func.now())
        insertion = (
            insert(idempotency)
            .values(
                tenant_id=claim.tenant_id,
                key_id=claim.key_id,
                idempotency_key=claim.idempotency_key,
                **fresh,
            )
            .on_conflict_do_update(
                index_elements=[_ROW.key_id, _ROW.idempotency_key],
                set_={**fresh, "status": None, "content_type": None, "answer": None},
                where=or_(_ROW.expires_at <= func.now(), and_(died, _ROW.body_hash == body_hash)),
            )
            .returning(_ROW.request_id)
        )
        # An answer may be megabytes, and is for who sends the same again alone.
        answer = case((_ROW.body_hash == body_hash, _ROW.answer)).label("answer")
        found = select(_ROW.body_hash, _ROW.status, _ROW.content_type, answer).where(_named(claim))
        async with self._database.tenant(claim.tenant_id, Purpose.LEDGER) as connection:
            for _ in range(_TRIES):
                if (await connection.execute(insertion)).one_or_none() is not None:
                    return None
                row = (await connection.execute(found)).one_or_none()
                # A row that went between the two statements was released: ask again.
                if row is not None:
                    return _record(row)
        # Others come and go: one of them runs.
        return KeyedRecord(body_hash, None)

    async def renew(self, claims: Sequence[Claim], *, lease_s: float) -> None:
        statement = (
            update(idempotency)
            .where(
                _ROW.key_id == bindparam("of_key"),
                _ROW.idempotency_key == bindparam("named"),
                _ROW.request_id == bindparam("run"),
                _ROW.status.is_(None),
            )
            .values(lease_until=func.now() + timedelta(seconds=lease_s))
        )
        # In one order everywhere, so that two gateways cannot block each other in a circle.
        rows = [
            {"of_key": claim.key_id, "named": claim.idempotency_key, "run": claim.run_id}
            for claim in sorted(claims, key=lambda claim: (claim.key_id, claim.idempotency_key))
        ]
        if rows:
            async with self._database.platform(Purpose.LEDGER) as connection:
                await connection.execute(statement, rows)

    async def save(self, claim: Claim, answer: SealedAnswer) -> bool:
        statement = (
            update(idempotency)
            .where(_ours(claim))
            .values(status=answer.status, content_type=answer.content_type, answer=answer.sealed)
        )
        async with self._database.tenant(claim.tenant_id, Purpose.LEDGER) as connection:
            return (await connection.execute(statement)).rowcount == 1

    async def release(self, claim: Claim) -> None:
        async with self._database.tenant(claim.tenant_id, Purpose.LEDGER) as connection:
            await connection.execute(delete(idempotency).where(_ours(claim)))

    async def sweep(self, limit: int) -> int:
        # Materialized: a plan that ran it again would delete more than the limit.
        old = (
            select(_ROW.key_id, _ROW.idempotency_key)
            .where(_ROW.expires_at <= func.now())
            .limit(limit)
            .with_for_update(skip_locked=True)
            .cte("old")
            .prefix_with("MATERIALIZED")
        )
        statement = delete(idempotency).where(
            _ROW.key_id == old.c.key_id, _ROW.idempotency_key == old.c.idempotency_key
        )
        async with self._database.platform(Purpose.LEDGER) as connection:
            return (await connection.execute(statement)).rowcount


async def answer_records(connection: AsyncConnection, rows: Sequence[KeyedRow]) -> set[UUID]:
    """Put answers into their records, each unless it has one; return the runs that came too late.

    To do it again changes nothing. A record that is gone, or that is another request's by now, is
    no reason not to bill.
    """
    # In one order everywhere, as for leases.
    ordered = sorted(rows, key=lambda row: (row.key_id, row.keyed.idempotency_key))
    await connection.execute(_ANSWER, [_answering(row) for row in ordered])
    names = [(row.key_id, row.keyed.idempotency_key) for row in ordered]
    found = await connection.execute(
        select(
            _ROW.key_id, _ROW.idempotency_key, _ROW.request_id, _ROW.body_hash, _ROW.expires_at
        ).where(tuple_(_ROW.key_id, _ROW.idempotency_key).in_(names))
    )
    records = {(one.key_id, one.idempotency_key): one for one in found}
    late = set()
    for row in ordered:
        record = records.get((row.key_id, row.keyed.idempotency_key))
        is_same = (
            record is not None
            and record.body_hash == row.keyed.body_hash
            and record.expires_at <= _latest_end(row)
        )
        if record is not None and is_same and record.request_id != row.request_id:
            late.add(row.request_id)
    return late


_ANSWER: Final = (
    update(idempotency)
    .where(
        _ROW.tenant_id == bindparam("of_tenant"),
        _ROW.key_id == bindparam("of_key"),
        _ROW.idempotency_key == bindparam("named"),
        _ROW.body_hash == bindparam("hashed"),
        _ROW.expires_at <= bindparam("latest_end"),
        _ROW.status.is_(None),
    )
    .values(
        request_id=bindparam("run"),
        status=bindparam("code"),
        content_type=bindparam("kind"),
        answer=bindparam("sealed"),
    )
)


def _answering(row: KeyedRow) -> dict[str, object]:
    answer = row.keyed.answer
    return {
        "of_tenant": row.tenant_id,
        "of_key": row.key_id,
        "named": row.keyed.idempotency_key,
        "hashed": row.keyed.body_hash,
        "latest_end": _latest_end(row),
        "run": row.request_id,
        "code": answer.status,
        "kind": answer.content_type,
        "sealed": answer.sealed,
    }


def _latest_end(row: KeyedRow) -> datetime:
    """Return until when a record can last that was claimed while this run's claim held."""
    return row.at + timedelta(seconds=2 * KEEP_S)


def _record(row: Row[*tuple[Any, ...]]) -> KeyedRecord:
    if row.status is None:
        return KeyedRecord(row.body_hash, None)
    return KeyedRecord(row.body_hash, SealedAnswer(row.status, row.content_type, row.answer))


def _named(claim: Claim) -> ColumnElement[bool]:
    return and_(
        _ROW.tenant_id == claim.tenant_id,
        _ROW.key_id == claim.key_id,
        _ROW.idempotency_key == claim.idempotency_key,
    )


def _ours(claim: Claim) -> ColumnElement[bool]:
    """Match the record while this run, and no later one, is to answer it."""
    return and_(_named(claim), _ROW.request_id == claim.run_id, _ROW.status.is_(None))
