"""The chain that the records of the audit log make, and the key that it is made with.

Every organisation has a chain: a record holds the hash of the one before it and, in its own,
everything that it says. The hash is an HMAC with a key of the root secret, so who can write to the
database and has not that secret cannot rewrite a record, nor one after it. Records from before
there was a key have a plain SHA-256. They stand at the chain's beginning, and what follows the last
of them is a seal, made with the key at the first start that has it: any other record there, or a
plain one later on, is a forgery. So is a chain of plain records alone.

Appending locks the chain's head to the end of the transaction, so the numbers have no gaps and a
change that fails leaves no record. Append after every other lock is taken: a transaction that waits
for a row while it holds the head could wait in a circle.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.credentials import Secrets
from gateway.domain.admin import SYSTEM, Actor, AuditEntry, AuditRecord
from gateway.store.tables import audit_heads, audit_log
from gateway.turns import in_chunks

log = logging.getLogger(__name__)

NO_HASH: Final = bytes(32)
_SEAL: Final = "audit.seal"
_EXACT: Final = 2**53
_SAME: Final = frozenset({str, bool, type(None)})
# Not `dataclasses.asdict`, which copies all that is in them first: half of a walk's time.
_SAID_OF_ACTOR: Final = tuple(field.name for field in fields(Actor))
_SAID_OF_ENTRY: Final = tuple(field.name for field in fields(AuditEntry))
# As many as are written in a few milliseconds of the event loop.
_APPEND_ROWS: Final = 10


class AuditChain:
    """Append records, and tell whether one follows another; holds the key."""

    def __init__(self, secrets: Secrets) -> None:
        self._key = secrets.audit_key
        self._pepper_id = secrets.pepper_id

    async def append(
        self, connection: AsyncConnection, actor: Actor, entry: AuditEntry
    ) -> AuditRecord:
        """Append to the organisation's chain in the caller's transaction, as `sluice_platform`."""
        first = upsert(audit_heads).values(
            organisation_id=entry.organisation_id, seq=1, hash=NO_HASH
        )
        taken = first.on_conflict_do_update(
            index_elements=[audit_heads.c.organisation_id], set_={"seq": audit_heads.c.seq + 1}
        ).returning(audit_heads.c.seq, audit_heads.c.hash, func.clock_timestamp().label("at"))
        head = (await connection.execute(taken)).one()
        record = self._record(head.seq, head.at, actor, entry, head.hash)
        await connection.execute(insert(audit_log).values(_row_of(record)))
        await connection.execute(
            update(audit_heads)
            .where(audit_heads.c.organisation_id == entry.organisation_id)
            .values(hash=record.hash)
        )
        return record

    async def append_all(
        self, connection: AsyncConnection, actor: Actor, entries: Sequence[AuditEntry]
    ) -> None:
        """Append entries of one organisation as `append` does, the head being taken once."""
        if not entries:
            return
        organisation_id = entries[0].organisation_id
        first = upsert(audit_heads).values(organisation_id=organisation_id, seq=0, hash=NO_HASH)
        taken = first.on_conflict_do_update(
            index_elements=[audit_heads.c.organisation_id], set_={"seq": audit_heads.c.seq}
        ).returning(audit_heads.c.seq, audit_heads.c.hash, func.clock_timestamp().label("at"))
        head = (await connection.execute(taken)).one()
        seq, last = head.seq, head.hash
        for chunk in in_chunks(entries, _APPEND_ROWS):
            rows = []
            for entry in chunk:
                assert entry.organisation_id == organisation_id, "a chain is of one"
                seq += 1
                record = self._record(seq, head.at, actor, entry, last)
                rows.append(_row_of(record))
                last = record.hash
            await connection.execute(insert(audit_log), rows)
        await connection.execute(
            update(audit_heads)
            .where(audit_heads.c.organisation_id == organisation_id)
            .values(seq=seq, hash=last)
        )

    async def seal(
        self, connection: AsyncConnection, organisation_id: UUID, *, was_keyed: bool
    ) -> None:
        """Take over a chain that was made without a key, in the caller's transaction.

        `was_keyed`: this machine has seen the chain with a key. What has none by now is forged, and
        is left for `verify` to find.
        """
        last = (
            select(audit_log.c.seq, audit_log.c.hash, audit_log.c.pepper_id)
            .where(audit_log.c.organisation_id == organisation_id)
            .order_by(audit_log.c.seq.desc())
            .limit(1)
        )
        row = (await connection.execute(last)).one_or_none()
        if row is None or row.pepper_id is not None:
            return
        if was_keyed:
            log.error("the audit log was keyed and is not: it was rewritten; 'sluice audit verify'")
            return
        entry = AuditEntry(
            action=_SEAL,
            object_kind="audit",
            object_id=str(row.seq),
            organisation_id=organisation_id,
            after={"unkeyed_seq": row.seq, "hash": row.hash.hex()},
        )
        await self.append(connection, SYSTEM, entry)
        log.warning("the audit log is keyed from record %d on", row.seq + 1)

    def _record(
        self, seq: int, at: datetime, actor: Actor, entry: AuditEntry, previous_hash: bytes
    ) -> AuditRecord:
        return AuditRecord(
            seq=seq,
            at=at,
            actor=actor,
            entry=entry,
            previous_hash=previous_hash,
            hash=hmac.digest(self._key, said(seq, at, actor, entry, previous_hash), "sha256"),
            pepper_id=self._pepper_id,
        )

    def follows(
        self, record: AuditRecord, seq: int, previous_hash: bytes, *, unkeyed_seq: int
    ) -> bool:
        """Tell whether a record continues a chain of `seq` records, `unkeyed_seq` without a key."""
        if (record.seq, record.previous_hash) != (seq + 1, previous_hash):
            return False
        text = said(record.seq, record.at, record.actor, record.entry, previous_hash)
        begins_plain = unkeyed_seq == seq
        if record.pepper_id is None:
            return begins_plain and record.hash == hashlib.sha256(text).digest()
        if begins_plain and seq > 0 and record.entry.action != _SEAL:
            return False
        keyed = hmac.digest(self._key, text, "sha256")
        return record.pepper_id == self._pepper_id and hmac.compare_digest(record.hash, keyed)


def said(seq: int, at: datetime, actor: Actor, entry: AuditEntry, previous_hash: bytes) -> bytes:
    """Write everything that a record says, with the hash before it.

    JSON quotes what it holds, so no two records that differ are written the same way.
    """
    said_of = [
        seq,
        at.astimezone(UTC).isoformat(timespec="microseconds"),
        {name: getattr(actor, name) for name in _SAID_OF_ACTOR},
        {name: _comparable(getattr(entry, name)) for name in _SAID_OF_ENTRY},
        previous_hash.hex(),
    ]
    text = json.dumps(said_of, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def _comparable(value: Any) -> Any:  # JSON, or an id
    """Write a value as it comes back from the database: its JSON knows one kind of number."""
    if type(value) in _SAME:
        return value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
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
        "pepper_id": record.pepper_id,
    }
