"""Answers that come with their bills, on a real PostgreSQL: both or none, one bill a request."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import func, select, update

from gateway.domain.idempotency import Claim, KeyedAnswer, KeyedRecord, SealedAnswer
from gateway.domain.usage import KeyedRow, Outcome, UsageRow
from gateway.errors import StoreUnavailable
from gateway.store import Store
from gateway.store.database import Database
from gateway.store.idempotency import SqlIdempotency
from gateway.store.ledger import SqlLedger
from gateway.store.tables import idempotency, usage_events
from tests.faults.postgres import Cut, PostgresProxy
from tests.gateway.usage_rows import usage_row

pytestmark = pytest.mark.anyio

HASH = b"h" * 32
ANSWER = SealedAnswer(200, "application/json", b"sealed")
OTHER = SealedAnswer(200, "application/json", b"another")
UNBILLED = (0, 0, Outcome.FAILED.value)


def claim_of(store: Store, key: str = "order-1") -> Claim:
    """A new run of a keyed request of acme."""
    assert store.first_start is not None
    made = store.first_start.keys[0].key
    return Claim(made.tenant_id, made.id, key, uuid4())


async def claim(store: Store, run: Claim, lease_s: float = 60) -> KeyedRecord | None:
    return await store.idempotency.claim(run, HASH, lease_s=lease_s, keep_s=24 * 3600)


def bill_of(run: Claim, **changes: object) -> UsageRow:
    return usage_row(
        request_id=run.run_id,
        tenant_id=run.tenant_id,
        key_id=run.key_id,
        at=datetime.now(UTC),
        **changes,
    )


def row_of(run: Claim, answer: SealedAnswer = ANSWER, **changes: object) -> KeyedRow:
    """Bill a run, with its answer."""
    return KeyedRow.of(bill_of(run, **changes), KeyedAnswer(run.idempotency_key, HASH, answer))


async def billed(store: Store, run: Claim) -> tuple[int, int, str]:
    """Return the tokens, the price and the outcome of a run's only row."""
    query = select(
        usage_events.c.output_tokens, usage_events.c.nano_usd, usage_events.c.outcome
    ).where(usage_events.c.request_id == run.run_id)
    async with store.database.platform() as connection:
        tokens, nano_usd, outcome = (await connection.execute(query)).one()
        return tokens, nano_usd, outcome


async def test_a_bill_brings_its_answer(store: Store) -> None:
    """After one insertion the row is in the ledger, and a retry gets the answer; again is no-op."""
    run = claim_of(store)
    await claim(store, run)
    row = row_of(run)
    assert await store.ledger.insert([usage_row(), row, usage_row()]) == 3
    assert await claim(store, claim_of(store)) == KeyedRecord(HASH, ANSWER)
    assert await store.ledger.insert([row]) == 0
    assert await billed(store, run) == (20, 1234, Outcome.COMPLETED.value)


async def test_an_answer_that_was_too_large_is_known_to_have_been(store: Store) -> None:
    """Its record says that the request was answered, and holds no bytes."""
    run, gone = claim_of(store), SealedAnswer(200, "", None)
    await claim(store, run)
    await store.ledger.insert([row_of(run, gone)])
    assert await claim(store, claim_of(store)) == KeyedRecord(HASH, gone)


async def test_the_first_answer_is_the_one_and_the_other_bills_nothing(store: Store) -> None:
    """A run that was taken for dead is stored before its heir: what the heir says is dropped."""
    dead, heir = claim_of(store), claim_of(store)
    await claim(store, dead, lease_s=0)
    assert await claim(store, heir) is None
    await store.ledger.insert([row_of(dead)])
    await store.ledger.insert([row_of(heir, OTHER)])
    assert await claim(store, claim_of(store)) == KeyedRecord(HASH, ANSWER)
    assert await billed(store, dead) == (20, 1234, Outcome.COMPLETED.value)
    assert await billed(store, heir) == UNBILLED


async def test_a_journal_that_comes_late_bills_nothing(store: Store) -> None:
    """The heir was answered and billed before: the row of the first, and its estimate, go."""
    dead, heir = claim_of(store), claim_of(store)
    await claim(store, dead, lease_s=0)
    assert await claim(store, heir) is None
    late = row_of(dead)
    await store.ledger.insert([replace(late.bill(), outcome=Outcome.LOST, output_tokens=7)])
    await store.ledger.insert([row_of(heir, OTHER)])
    await store.ledger.insert([late])
    assert await claim(store, claim_of(store)) == KeyedRecord(HASH, OTHER)
    assert await billed(store, heir) == (20, 1234, Outcome.COMPLETED.value)
    assert await billed(store, dead) == UNBILLED


async def test_both_in_one_batch_are_one_bill(store: Store) -> None:
    """The same, where one journal holds both."""
    dead, heir = claim_of(store), claim_of(store)
    await claim(store, dead, lease_s=0)
    await claim(store, heir)
    await store.ledger.insert([row_of(dead), row_of(heir, OTHER)])
    bills = {await billed(store, dead), await billed(store, heir)}
    assert bills == {(20, 1234, Outcome.COMPLETED.value), UNBILLED}


async def test_a_record_that_is_gone_is_no_reason_not_to_bill(store: Store) -> None:
    """Neither one that was swept, nor one whose key names a later request by now."""
    swept, replaced, later = claim_of(store, "a"), claim_of(store, "b"), claim_of(store, "b")
    await claim(store, later)
    async with store.database.platform() as connection:
        await connection.execute(
            update(idempotency).values(expires_at=func.now() + timedelta(days=3))
        )
    await store.ledger.insert([row_of(swept), row_of(replaced)])
    for run in (swept, replaced):
        assert await billed(store, run) == (20, 1234, Outcome.COMPLETED.value)
    assert await claim(store, claim_of(store, "b")) == KeyedRecord(HASH, None)


@pytest.mark.parametrize("is_passed", [False, True], ids=["lost", "done"])
async def test_a_commit_that_is_cut_is_repeated(
    store: Store, database_url: str, is_passed: bool
) -> None:
    """Row and answer are both there or both not; after the repetition, both, once."""
    run = claim_of(store)
    await claim(store, run)
    row = row_of(run)
    async with PostgresProxy(database_url) as proxy:
        database = Database(proxy.url)
        ledger, records = SqlLedger(database), SqlIdempotency(database)
        await records.sweep(1)
        proxy.cut = Cut(b"COMMIT", is_passed=is_passed)
        with pytest.raises(StoreUnavailable):
            await ledger.insert([row])
        found = await claim(store, claim_of(store))
        assert found == KeyedRecord(HASH, ANSWER if is_passed else None)
        assert await ledger.insert([row]) == (0 if is_passed else 1)
        await database.close()
    assert await claim(store, claim_of(store)) == KeyedRecord(HASH, ANSWER)
    assert await billed(store, run) == (20, 1234, Outcome.COMPLETED.value)
