"""Idempotency records on a real PostgreSQL."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, select, update

from gateway.domain.idempotency import Claim, KeyedRecord, SealedAnswer
from gateway.store import Store
from gateway.store.tables import idempotency

pytestmark = pytest.mark.anyio

HASH = b"h" * 32
ANSWER = SealedAnswer(200, "application/json", b"sealed")


def claim_of(store: Store, tenant: int = 0, key: str = "order-1") -> Claim:
    """A new run of a keyed request of a tenant."""
    assert store.first_start is not None
    made = store.first_start.keys[tenant].key
    return Claim(made.tenant_id, made.id, key, uuid4())


async def claim(
    store: Store, run: Claim, body_hash: bytes = HASH, lease_s: float = 60
) -> KeyedRecord | None:
    return await store.idempotency.claim(run, body_hash, lease_s=lease_s, keep_s=3600)


async def test_the_first_to_come_has_it(store: Store) -> None:
    """A claim holds until it is ended: then the next run sees the answer, or has it anew."""
    first, second = claim_of(store), claim_of(store)
    assert await claim(store, first) is None
    assert await claim(store, second) == KeyedRecord(HASH, None)
    assert await store.idempotency.save(first, ANSWER)
    assert await claim(store, second) == KeyedRecord(HASH, ANSWER)
    # What was answered is no longer anybody's to give back.
    await store.idempotency.release(first)
    assert await claim(store, second) == KeyedRecord(HASH, ANSWER)

    other = claim_of(store, key="order-2")
    assert await claim(store, other) is None
    await store.idempotency.release(other)
    assert await claim(store, replace(other, run_id=uuid4())) is None


async def test_who_sends_another_body_is_handed_no_answer(store: Store) -> None:
    """A refusal needs none of an answer's megabytes; that there is one, and of what, is told."""
    first = claim_of(store)
    assert await claim(store, first) is None
    assert await store.idempotency.save(first, ANSWER)
    told = await claim(store, claim_of(store), body_hash=b"o" * 32)
    assert told == KeyedRecord(HASH, replace(ANSWER, sealed=None))


async def test_a_lease_that_passed_is_taken_over_for_good(store: Store) -> None:
    """The dead process's run can then neither answer nor release, nor prolong its lease."""
    dead, heir = claim_of(store), claim_of(store)
    assert await claim(store, dead, lease_s=0) is None
    assert await claim(store, heir) is None
    assert not await store.idempotency.save(dead, ANSWER)
    await store.idempotency.release(dead)
    await store.idempotency.renew([dead], lease_s=0)
    assert await claim(store, claim_of(store)) == KeyedRecord(HASH, None)
    assert await store.idempotency.save(heir, ANSWER)


async def test_a_dead_lease_is_no_licence_for_another_body(store: Store) -> None:
    """The key stays the first request's, so another body is still told that it is not its own."""
    assert await claim(store, claim_of(store), lease_s=0) is None
    assert await claim(store, claim_of(store), b"x" * 32) == KeyedRecord(HASH, None)


async def test_a_renewed_lease_holds(store: Store) -> None:
    """Renewing prolongs every claim that is named, in whatever order."""
    runs = [claim_of(store, key=key) for key in ("b", "a")]
    for run in runs:
        assert await claim(store, run, lease_s=0) is None
    await store.idempotency.renew(runs, lease_s=60)
    for run in runs:
        assert await claim(store, replace(run, run_id=uuid4())) == KeyedRecord(HASH, None)


async def test_what_expired_is_new_again_and_is_swept(store: Store) -> None:
    """An expired answer is nobody's; a sweep deletes no more than it may, and nothing else."""
    for number in range(3):
        run = claim_of(store, key=f"old-{number}")
        await store.idempotency.claim(run, HASH, lease_s=60, keep_s=0)
        await store.idempotency.save(run, ANSWER)
    assert await claim(store, claim_of(store, key="old-0")) is None
    assert await claim(store, claim_of(store, key="live")) is None
    assert [await store.idempotency.sweep(1) for _ in range(3)] == [1, 1, 0]
    async with store.database.platform() as connection:
        left = await connection.execute(
            select(idempotency.c.idempotency_key).order_by(idempotency.c.idempotency_key)
        )
        assert list(left.scalars()) == ["live", "old-0"]


async def test_tenants_share_nothing(store: Store) -> None:
    """The same key of another tenant is another record, and row-level security hides it."""
    acme, globex = claim_of(store, 0), claim_of(store, 1)
    assert await claim(store, acme) is None
    assert await claim(store, globex) is None
    async with store.database.tenant(globex.tenant_id) as connection:
        seen = await connection.execute(select(idempotency.c.tenant_id))
        assert list(seen.scalars()) == [globex.tenant_id]
        stolen = await connection.execute(
            update(idempotency).where(idempotency.c.key_id == acme.key_id).values(answer=b"x")
        )
        assert stolen.rowcount == 0


async def test_many_at_once_have_one_winner(store: Store) -> None:
    """However many claim together, one runs and the rest see that it does."""
    runs = [claim_of(store) for _ in range(12)]
    found = await asyncio.gather(*(claim(store, run) for run in runs))
    assert found.count(None) == 1
    assert found.count(KeyedRecord(HASH, None)) == 11
    async with store.database.platform() as connection:
        query = select(func.count()).select_from(idempotency)
        assert (await connection.execute(query)).scalar_one() == 1
        [holder] = (await connection.execute(select(idempotency.c.request_id))).scalars()
    assert isinstance(holder, UUID)
    assert holder == runs[found.index(None)].run_id
