"""The audit log: in the transaction of its change, without gaps, and proof against changes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from uuid import UUID

import pytest
from sqlalchemy import Executable, delete, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from gateway.domain import TenantSlo
from gateway.domain.admin import Actor, AuditEntry, AuditFilter, AuditRecord
from gateway.domain.page import PageRequest
from gateway.errors import Conflict
from gateway.store import Store
from gateway.store.audit import append
from gateway.store.database import Database
from gateway.store.tables import audit_heads, audit_log, tenants

pytestmark = pytest.mark.anyio

ACTOR = Actor("ann", "owner", "127.0.0.1", "r1")


async def test_a_first_start_tells_what_it_made(store: Store) -> None:
    """The chain begins with the tenants, their keys, the admin token and the price."""
    records = list(reversed(await _records(store)))
    assert [record.entry.action for record in records] == [
        *("tenant.create", "key.create") * 2,
        "token.create",
        "price.create",
    ]
    assert [record.seq for record in records] == [1, 2, 3, 4, 5, 6]
    assert {record.actor for record in records} == {Actor("system", "system")}
    assert await _broken(store) is None


async def test_a_change_and_its_record_are_one(store: Store) -> None:
    """A change tells who, what, and the object before and after; one that fails tells nothing."""
    organisation = await store.organisations.default()
    await store.tenants.update(ACTOR, organisation.id, "acme", {"weight": 2.5})
    [record, *_] = before = await _records(store)
    assert (record.actor, record.entry.action) == (ACTOR, "tenant.update")
    assert (record.entry.before, record.entry.after) == (
        {**_plain_tenant("acme"), "weight": 1.0},
        {**_plain_tenant("acme"), "weight": 2.5},
    )
    with pytest.raises(Conflict):
        await store.tenants.add(ACTOR, organisation.id, "acme", 1.0, TenantSlo())
    assert await _records(store) == before


async def test_a_change_that_rolls_back_leaves_no_record(store: Store) -> None:
    """What happens after the record was written can still undo both."""
    before = await _records(store)

    async def fail_after_both() -> None:
        async with store.database.platform() as connection:
            await connection.execute(update(tenants).values(weight=9))
            await append(connection, ACTOR, await _entry(store))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail_after_both()
    assert await _records(store) == before
    assert await _broken(store) is None


async def test_changes_at_once_make_a_chain_without_gaps(store: Store) -> None:
    """Twenty changes that run together take twenty numbers in a row, each on the one before."""
    organisation = await store.organisations.default()
    await asyncio.gather(
        *(
            store.tenants.update(ACTOR, organisation.id, name, {"weight": weight})
            for weight in range(2, 12)
            for name in ("acme", "globex")
        )
    )
    records = list(reversed(await _records(store)))
    assert [record.seq for record in records] == list(range(1, 27))
    assert all(later.previous_hash == earlier.hash for earlier, later in pairwise(records))
    assert await _broken(store) is None


@pytest.mark.parametrize("role", ["owner", "platform", "tenant"])
@pytest.mark.parametrize(
    "change",
    [update(audit_log).values(actor="bob"), delete(audit_log), text("TRUNCATE audit_log")],
    ids=["update", "delete", "truncate"],
)
async def test_nobody_changes_or_removes_a_record(store: Store, role: str, change) -> None:  # type: ignore[no-untyped-def]
    """Neither the tables' owner, nor the platform, nor a tenant."""
    database = store.database
    opened = database.tenant(UUID(int=1)) if role == "tenant" else getattr(database, role)()
    with pytest.raises(DBAPIError, match=r"append-only|permission denied"):
        async with opened as connection:
            await connection.execute(change)


@pytest.mark.parametrize(
    "change",
    [
        {"actor": "bob"},
        {"actor_role": "viewer"},
        {"ip": None},
        {"request_id": "other"},
        {"action": "tenant.read"},
        {"object_kind": "key"},
        {"object_id": "other"},
        {"tenant_id": None},
        {"before": None},
        {"after": {"weight": 2}},
        {"at": audit_log.c.at + timedelta(microseconds=1)},
        {"previous_hash": bytes(32)},
        {"hash": bytes(32)},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_a_tampered_record_is_found(store: Store, change: Mapping[str, object]) -> None:
    """An owner who takes the guard away and changes any field is found by the walk."""
    organisation = await store.organisations.default()
    for weight in (2, 3):
        await store.tenants.update(ACTOR, organisation.id, "acme", {"weight": weight})
    await _tamper(store.database, update(audit_log).where(audit_log.c.seq == 7).values(change))
    assert await _broken(store) == 7


@pytest.mark.parametrize("gone", [1, 3, 6])
async def test_a_removed_record_is_found(store: Store, gone: int) -> None:
    """The first, one in the middle, and the last."""
    await _tamper(store.database, delete(audit_log).where(audit_log.c.seq == gone))
    assert await _broken(store) == gone


async def test_a_forged_record_and_a_moved_head_are_found(store: Store) -> None:
    """A record behind the head, and a head that was set back with the records behind it."""
    forged = select(
        audit_log.c.organisation_id,
        (audit_log.c.seq + 1).label("seq"),
        *[column for column in audit_log.c if column.name not in ("organisation_id", "seq")],
    ).where(audit_log.c.seq == 6)
    names = [column.name for column in audit_log.c]
    await _tamper(store.database, insert(audit_log).from_select(names, forged))
    assert await _broken(store) == 7
    await _tamper(store.database, delete(audit_log).where(audit_log.c.seq == 7))
    assert await _broken(store) is None
    await _tamper(store.database, update(audit_heads).values(hash=bytes(32)))
    assert await _broken(store) == 6


async def test_a_chain_of_nothing_holds(store: Store) -> None:
    """An organisation without changes has a chain without records."""
    verdict = await store.audit.verify(UUID(int=9))
    assert (verdict.seq, verdict.broken_seq) == (0, None)


async def test_records_are_chosen_and_paged(store: Store) -> None:
    """By tenant, actor, action, kind and time, the newest first, in pages that do not overlap."""
    organisation = await store.organisations.default()
    for weight in (2, 3, 4):
        await store.tenants.update(ACTOR, organisation.id, "acme", {"weight": weight})
    acme = await store.tenants.by_name(organisation.id, "acme")
    assert acme is not None
    every = await _records(store)

    async def chosen(**how: object) -> list[int]:
        return [one.seq for one in await _records(store, AuditFilter(**how))]  # type: ignore[arg-type]

    assert await chosen(tenant_id=acme.id) == [9, 8, 7, 2, 1]
    assert await chosen(actor="ann") == [9, 8, 7]
    assert await chosen(action="key.create") == [4, 2]
    assert await chosen(object_kind="price") == [6]
    assert await chosen(since=every[1].at) == [9, 8]
    assert await chosen(until=every[1].at) == [7, 6, 5, 4, 3, 2, 1]
    first = await store.audit.page(organisation.id, AuditFilter(), PageRequest(4))
    await store.tenants.update(ACTOR, organisation.id, "acme", {"weight": 5})
    second = await store.audit.page(organisation.id, AuditFilter(), PageRequest(4, first.next))
    third = await store.audit.page(organisation.id, AuditFilter(), PageRequest(4, second.next))
    assert [*first.data, *second.data, *third.data] == every
    assert third.next is None


async def test_a_tenant_sees_its_own_records_without_any_where(store: Store) -> None:
    """A query that forgot its WHERE returns the named tenant's records alone."""
    organisation = await store.organisations.default()
    globex = await store.tenants.by_name(organisation.id, "globex")
    assert globex is not None
    async with store.database.tenant(globex.id) as connection:
        seen = (await connection.scalars(select(audit_log.c.tenant_id))).all()
    assert seen == [globex.id, globex.id]


async def test_what_json_does_to_numbers_breaks_no_chain(store: Store) -> None:
    """The database keeps neither exponents nor the order of names, and hashes stay true."""
    numbers = [1.0, 1e-5, 0.1, 1e16, 1e300, -0.0, 2**53, -7, 10**15]
    after = {"b": numbers, "a": {"é": "\U0001f600", "": None, "t": True}, "pair": (1, 2.5)}
    async with store.database.platform() as connection:
        await append(connection, ACTOR, replace(await _entry(store), after=after))
    assert await _broken(store) is None


async def _records(store: Store, chosen: AuditFilter | None = None) -> list[AuditRecord]:
    """Return records, the newest first."""
    organisation = await store.organisations.default()
    page = await store.audit.page(organisation.id, chosen or AuditFilter(), PageRequest(1000))
    return list(page.data)


async def _broken(store: Store) -> int | None:
    organisation = await store.organisations.default()
    return (await store.audit.verify(organisation.id)).broken_seq


async def _entry(store: Store) -> AuditEntry:
    organisation = await store.organisations.default()
    return AuditEntry("test", "thing", "id", organisation.id)


async def _tamper(database: Database, statement: Executable) -> None:
    """Change a record as an owner can who takes every guard away."""
    tables = ("audit_log", "audit_heads")
    async with database.owner() as connection:
        await connection.execute(text("ALTER TABLE audit_log DISABLE TRIGGER append_only"))
        for table in tables:
            await connection.execute(text(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY"))
        await connection.execute(statement)
        await connection.execute(text("ALTER TABLE audit_log ENABLE TRIGGER append_only"))
        await connection.execute(text("ALTER TABLE audit_log FORCE ROW LEVEL SECURITY"))


def _plain_tenant(name: str) -> dict[str, object]:
    promises = {"ttft_ms": None, "tpot_ms": None, "max_gap_ms": None}
    ceilings = {"max_tier": "priority", "models": None, "cidrs": None, "max_keys": None}
    return {"name": name, "plan": None, **promises, **ceilings}
