"""The audit log: in the transaction of its change, without gaps, and proof against changes."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Executable, delete, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from gateway.domain import TenantSlo
from gateway.domain.admin import Actor, AuditEntry, AuditFilter, AuditRecord
from gateway.domain.page import PageRequest
from gateway.errors import Conflict
from gateway.settings import Settings
from gateway.store import Store, open_store
from gateway.store.audit import SqlAudit
from gateway.store.audit_chain import AuditChain, said
from gateway.store.database import Database
from gateway.store.kept_heads import NAME
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
            await AuditChain(store.secrets).append(connection, ACTOR, await _entry(store))
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
async def test_nobody_changes_or_removes_a_record(  # type: ignore[no-untyped-def]
    store: Store, owner: Database, role: str, change
) -> None:
    """Neither the tables' owner, nor the platform, nor a tenant."""
    opened = {
        "owner": owner.as_itself,
        "platform": store.database.platform,
        "tenant": lambda: store.database.tenant(UUID(int=1)),
    }[role]()
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
        {"pepper_id": "other"},
        {"pepper_id": None},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_a_tampered_record_is_found(
    store: Store, owner: Database, change: Mapping[str, object]
) -> None:
    """An owner who takes the guard away and changes any field is found by the walk."""
    organisation = await store.organisations.default()
    for weight in (2, 3):
        await store.tenants.update(ACTOR, organisation.id, "acme", {"weight": weight})
    await _tamper(owner, update(audit_log).where(audit_log.c.seq == 7).values(change))
    assert await _broken(store) == 7


@pytest.mark.parametrize("gone", [1, 3, 6])
async def test_a_removed_record_is_found(store: Store, owner: Database, gone: int) -> None:
    """The first, one in the middle, and the last."""
    await _tamper(owner, delete(audit_log).where(audit_log.c.seq == gone))
    assert await _broken(store) == gone


async def test_a_forged_record_and_a_moved_head_are_found(store: Store, owner: Database) -> None:
    """A record behind the head, and a head that was set back with the records behind it."""
    forged = select(
        audit_log.c.organisation_id,
        (audit_log.c.seq + 1).label("seq"),
        *[column for column in audit_log.c if column.name not in ("organisation_id", "seq")],
    ).where(audit_log.c.seq == 6)
    names = [column.name for column in audit_log.c]
    await _tamper(owner, insert(audit_log).from_select(names, forged))
    assert await _broken(store) == 7
    await _tamper(owner, delete(audit_log).where(audit_log.c.seq == 7))
    assert await _broken(store) is None
    await _tamper(owner, update(audit_heads).values(hash=bytes(32)))
    assert await _broken(store) == 6


async def test_who_has_not_the_secret_makes_no_chain_again(store: Store, owner: Database) -> None:
    """A record that is changed with all behind it, by every rule but the key, is found."""
    await _tamper(owner, update(audit_log).where(audit_log.c.seq == 3).values(actor="bob"))
    await _chain_again(store, owner, 3, lambda text: hashlib.sha256(text).digest())
    assert await _broken(store) == 3
    await _chain_again(store, owner, 3, lambda text: hmac.digest(bytes(32), text, "sha256"))
    assert await _broken(store) == 3
    # Whoever has it can: what is left then is a head that was kept elsewhere.
    await _chain_again(
        store, owner, 3, lambda text: hmac.digest(store.secrets.audit_key, text, "sha256")
    )
    assert await _broken(store) is None


async def test_nobody_can_pretend_that_all_records_are_old(
    store: Store, owner: Database, settings: Settings
) -> None:
    """A chain made again without a key holds neither as it is, nor with what is appended to it."""
    organisation = await store.organisations.default()
    told = await store.audit.head(organisation.id)
    assert told is not None
    store.kept_heads.write(organisation.id, told)
    await _tamper(owner, update(audit_log).values(actor="bob", pepper_id=None))
    await _chain_again(store, owner, 1, lambda text: hashlib.sha256(text).digest())
    assert await _broken(store) == 7
    await store.tenants.update(ACTOR, organisation.id, "acme", {"weight": 2.0})
    assert await _broken(store) == 7
    await _tamper(owner, delete(audit_log).where(audit_log.c.seq == 7))
    sixth = select(audit_log.c.hash).where(audit_log.c.seq == 6).scalar_subquery()
    await _tamper(owner, update(audit_heads).values(seq=6, hash=sixth))
    # A start does not seal what its machine has seen with a key.
    async with _started_again(settings, kept_heads=settings.data_dir / NAME) as again:
        assert await _broken(again) == 7
    # One that has never seen it does; a head that was kept elsewhere is not in it.
    async with _started_again(settings) as again:
        verdict = await again.audit.verify(organisation.id, [told])
    assert (verdict.broken_seq, verdict.unkeyed_seq, verdict.lost_seq) == (None, 6, 6)


async def test_records_from_before_the_key_hold_as_what_they_are(
    settings: Settings, store: Store, owner: Database
) -> None:
    """A start seals them: they are told apart, and whatever is changed of them is found."""
    organisation = await store.organisations.default()
    await _tamper(owner, update(audit_log).values(pepper_id=None))
    await _chain_again(store, owner, 1, lambda text: hashlib.sha256(text).digest())
    for _ in range(2):  # once is enough
        async with _started_again(settings) as again:
            await again.tenants.update(ACTOR, organisation.id, "acme", {"weight": 2.0})
            verdict = await again.audit.verify(organisation.id)
            assert (verdict.seq, verdict.broken_seq, verdict.unkeyed_seq) == (8, None, 6)
    [seal] = await _records(store, AuditFilter(action="audit.seal"))
    assert (seal.seq, seal.entry.after) == (
        7,
        {"unkeyed_seq": 6, "hash": seal.previous_hash.hex()},
    )
    await _tamper(owner, update(audit_log).where(audit_log.c.seq == 6).values(actor="bob"))
    assert await _broken(store) == 6
    await _chain_again(store, owner, 6, lambda text: hashlib.sha256(text).digest(), last=6)
    assert await _broken(store) == 7


def test_a_record_says_what_it_always_said() -> None:
    """What releases from before the key have hashed is hashed to the same today."""
    weights = {"weight": 1.0, "é": [1e-5, None, True]}
    entry = AuditEntry(
        *("tenant.update", "tenant", "t1", UUID(int=1), UUID(int=2), weights, {"weight": 2})
    )
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    digest = hashlib.sha256(said(7, at, ACTOR, entry, bytes(range(32)))).hexdigest()
    assert digest == "275d4f7941cf6df0d8914bad31c77ede44d55d1da1c51f46c158d717fef5501c"


async def test_a_record_without_a_key_is_refused_and_found(store: Store, owner: Database) -> None:
    """Code from before the key adds none; where that guard is gone, one breaks the chain."""
    organisation = await store.organisations.default()
    await store.tenants.update(ACTOR, organisation.id, "acme", {"weight": 2.0})
    as_before = [column for column in audit_log.c if column.name not in ("seq", "pepper_id")]
    copied = select(text("8"), *as_before).where(audit_log.c.seq == 7)
    names = ["seq", *(column.name for column in as_before)]
    with pytest.raises(DBAPIError, match="newer sluice"):
        async with store.database.platform() as connection:
            await connection.execute(insert(audit_log).from_select(names, copied))
    without = update(audit_log).where(audit_log.c.seq == 7).values(pepper_id=None)
    await _tamper(owner, without)
    await _chain_again(store, owner, 7, lambda text: hashlib.sha256(text).digest())
    assert await _broken(store) == 7


async def test_a_chain_that_was_cut_off_lacks_a_head_kept_elsewhere(
    store: Store, owner: Database
) -> None:
    """By itself it holds; a head from before shows that its end is gone, or was made anew."""
    organisation = await store.organisations.default()
    early = await store.audit.head(organisation.id)
    await store.tenants.update(ACTOR, organisation.id, "acme", {"weight": 2.0})
    late = await store.audit.head(organisation.id)
    assert early is not None
    assert late is not None
    assert (early.seq, late.seq) == (6, 7)
    assert await store.audit.head_was(organisation.id, 6) == early
    assert late.at == (await _records(store))[0].at
    assert (await store.audit.verify(organisation.id, [early, late])).lost_seq is None
    await _tamper(owner, delete(audit_log).where(audit_log.c.seq == 7))
    await _tamper(owner, update(audit_heads).values(seq=6, hash=early.hash))
    verdict = await store.audit.verify(organisation.id, [late, early])
    assert (verdict.seq, verdict.broken_seq, verdict.lost_seq) == (6, None, 7)
    await store.tenants.update(ACTOR, organisation.id, "acme", {"weight": 3.0})
    verdict = await store.audit.verify(organisation.id, [early, late])
    assert (verdict.seq, verdict.broken_seq, verdict.lost_seq) == (7, None, 7)


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
        await AuditChain(store.secrets).append(
            connection, ACTOR, replace(await _entry(store), after=after)
        )
    assert await _broken(store) is None


async def _records(store: Store, chosen: AuditFilter | None = None) -> list[AuditRecord]:
    """Return records, the newest first."""
    organisation = await store.organisations.default()
    page = await store.audit.page(organisation.id, chosen or AuditFilter(), PageRequest(1000))
    return list(page.data)


async def test_a_walk_along_the_chain_leaves_the_loop_to_others(store: Store) -> None:
    """Of hundreds of records 25 are checked in a row, and then what else goes on has its turn."""
    others, turns = 0, list[int]()

    class Noting(AuditChain):
        def follows(self, *args: Any, **kwargs: Any) -> bool:
            turns.append(others)
            return super().follows(*args, **kwargs)

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    chain, entry = Noting(store.secrets), await _entry(store)
    async with store.database.platform() as connection:
        await chain.append_all(connection, ACTOR, [entry] * 300)
    beside = asyncio.ensure_future(other())
    verdict = await SqlAudit(store.database, chain).verify(entry.organisation_id)
    beside.cancel()
    assert (verdict.seq, verdict.broken_seq, len(turns)) == (306, None, 306)
    begun = [0, *(n for n, (a, b) in enumerate(pairwise(turns), 1) if b > a), len(turns)]
    assert max(b - a for a, b in pairwise(begun)) <= 25


async def _broken(store: Store) -> int | None:
    organisation = await store.organisations.default()
    return (await store.audit.verify(organisation.id)).broken_seq


async def _entry(store: Store) -> AuditEntry:
    organisation = await store.organisations.default()
    return AuditEntry("test", "thing", "id", organisation.id)


async def _tamper(database: Database, statement: Executable) -> None:
    """Change a record as an owner can who takes every guard away."""
    tables = ("audit_log", "audit_heads")
    async with database.as_itself() as connection:
        await connection.execute(text("ALTER TABLE audit_log DISABLE TRIGGER append_only"))
        for table in tables:
            await connection.execute(text(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY"))
        await connection.execute(statement)
        await connection.execute(text("ALTER TABLE audit_log ENABLE TRIGGER append_only"))
        await connection.execute(text("ALTER TABLE audit_log FORCE ROW LEVEL SECURITY"))


@asynccontextmanager
async def _started_again(
    settings: Settings, *, kept_heads: Path | None = None
) -> AsyncIterator[Store]:
    """Start a gateway with the same secret and stores, on a machine that has kept these heads."""
    place = settings.data_dir.with_name("again")
    shutil.copytree(settings.data_dir / "secrets", place / "secrets")
    if kept_heads is not None:
        shutil.copy(kept_heads, place)
    async with open_store(settings.model_copy(update={"data_dir": place})) as again:
        yield again
    shutil.rmtree(place)


async def _chain_again(
    store: Store,
    owner: Database,
    first: int,
    hash_of: Callable[[bytes], bytes],
    *,
    last: int = 1000,
) -> None:
    """Hash records anew, each over the one before, and have the head say so."""
    records = list(reversed(await _records(store)))
    hash_ = records[first - 2].hash if first > 1 else bytes(32)
    for one in (record for record in records if first <= record.seq <= last):
        previous = {"previous_hash": hash_}
        hash_ = hash_of(said(one.seq, one.at, one.actor, one.entry, hash_))
        changed = update(audit_log).where(audit_log.c.seq == one.seq)
        await _tamper(owner, changed.values(hash=hash_, **previous))
    if last > len(records):
        await _tamper(owner, update(audit_heads).values(hash=hash_))


def _plain_tenant(name: str) -> dict[str, object]:
    promises = {"ttft_ms": None, "tpot_ms": None, "max_gap_ms": None}
    ceilings = {"max_tier": "priority", "models": None, "cidrs": None, "max_keys": None}
    return {"name": name, "plan": None, "org": None, **promises, **ceilings, "trace_prompts": False}
