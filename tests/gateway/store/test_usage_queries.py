"""Sums of usage against a real PostgreSQL: exact at any moment, and of one tenant alone."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert, select, update

from gateway.domain import ApiKey
from gateway.domain.tier import Tier
from gateway.domain.usage import Outcome, UsageBy, UsageQuestion, UsageRow, UsageSum, UsageTotals
from gateway.store import Store, usage_queries
from gateway.store.ledger import SqlLedger
from gateway.store.tables import (
    audit_log,
    idempotency,
    quotas,
    usage_daily,
    usage_events,
    usage_hourly,
)
from gateway.store.usage_queries import SqlUsage
from tests.gateway.usage_rows import MORNING, usage_row

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
TOP = MORNING.replace(minute=0, second=0, microsecond=0)
DAY = TOP.replace(hour=0)
DAY_END = DAY + 24 * HOUR


async def test_sums_are_what_adding_up_the_rows_gives(store: Store) -> None:
    """Over whatever stretch of time, told apart by whatever, for whomever: to the nano-dollar."""
    draw = random.Random(7)
    acme, globex = await _keys(store)
    rows = [_random_row(draw, draw.choice([acme, globex])) for _ in range(400)]
    await SqlLedger(store.database).insert(rows)
    moments = [TOP + n * HOUR for n in (-30, -3, 0, 1, 26)] + [DAY - 24 * HOUR, DAY, DAY_END]
    moments += [draw.choice(rows).at for _ in range(5)]
    moments += [row.at + timedelta(microseconds=1) for row in draw.choices(rows, k=5)]
    for _ in range(40):
        start, end = sorted(draw.sample(moments, 2))
        if start == end:
            continue
        question = UsageQuestion(
            organisation_id=rows[0].organisation_id,
            start=start,
            end=end,
            by=tuple(draw.sample(list(UsageBy), draw.randrange(1, 5))),
            tenant_id=draw.choice([None, acme.tenant_id]),
            key_id=draw.choice([None, None, acme.id]),
            model=draw.choice([None, None, "a"]),
        )
        found = await _ask(store, question)
        assert found == _added_up(rows, question, {key.id: key for key in (acme, globex)})


async def test_whole_days_are_read_from_sums_by_day(store: Store) -> None:
    """What is in these alone is in the answer, but where it tells hours apart or takes part of a
    day.
    """
    (acme, _), organisation = await _keys(store), await store.organisations.default()
    await SqlLedger(store.database).insert([await _own(store, _of(acme))])
    async with store.database.platform() as connection:
        await connection.execute(update(usage_daily).values(requests=100))
    for start, end, by, requests in (
        (DAY, DAY_END, UsageBy.DAY, 100),
        (DAY - timedelta(minutes=1), DAY_END + timedelta(minutes=90), UsageBy.KEY, 100),
        (DAY, DAY_END, UsageBy.HOUR, 1),
        (DAY + timedelta(microseconds=1), DAY_END, UsageBy.DAY, 1),
        (DAY, DAY_END - timedelta(microseconds=1), UsageBy.DAY, 1),
    ):
        question = replace(_question(organisation.id, by), start=start, end=end)
        assert [one.totals.requests for one in await _ask(store, question)] == [requests]


async def test_what_the_ledger_outlives_is_told_by_its_id(store: Store) -> None:
    """Usage of a tenant and a key that are no more is not forgotten."""
    row = await _own(store, usage_row(tenant_id=uuid4(), key_id=uuid4()))
    await SqlLedger(store.database).insert([row])
    question = _question(row.organisation_id, UsageBy.TENANT, UsageBy.KEY)
    (one,) = await _ask(store, question)
    assert one.of == (str(row.tenant_id), str(row.key_id))
    assert one.totals.requests == 1


async def test_a_key_as_told_before_the_truth_was_known_has_no_row(store: Store) -> None:
    """A sum that a replaced row left empty is not shown."""
    row = await _own(store, usage_row(outcome=Outcome.LOST, model="guessed"))
    ledger = SqlLedger(store.database)
    await ledger.insert([row])
    await ledger.insert([replace(row, outcome=Outcome.COMPLETED, model="true")])
    found = await _ask(store, _question(row.organisation_id, UsageBy.MODEL))
    assert [one.of for one in found] == [("true",)]


async def test_many_sums_come_in_batches(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is more than one batch is complete and in order, and may be left early."""
    monkeypatch.setattr(usage_queries, "_BATCH_ROWS", 3)
    organisation = await store.organisations.default()
    rows = [usage_row(organisation_id=organisation.id, model=f"m{n}") for n in range(8)]
    await SqlLedger(store.database).insert(rows)
    question = _question(organisation.id, UsageBy.MODEL)
    usage = SqlUsage(store.database)
    batches = [batch async for batch in usage.sums(question)]
    assert [len(batch) for batch in batches] == [3, 3, 2]
    assert [one.of[0] for batch in batches for one in batch] == [f"m{n}" for n in range(8)]
    left = usage.sums(question)
    assert len(await anext(left)) == 3
    await left.aclose()


async def test_another_organisation_is_not_summed(store: Store) -> None:
    """A question of one organisation sees nothing of another."""
    await SqlLedger(store.database).insert([usage_row()])
    organisation = await store.organisations.default()
    assert await _ask(store, _question(organisation.id, UsageBy.DAY)) == []


async def test_without_its_where_a_question_of_a_tenant_still_sees_that_tenant_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row-level security answers, whatever the statement forgot: from rows, hours and days."""
    acme, globex = await _keys(store)
    await SqlLedger(store.database).insert([await _own(store, _of(acme)) for _ in range(3)])
    monkeypatch.setattr(usage_queries, "_wanted", lambda table, question: [])
    organisation = await store.organisations.default()
    for start, end in ((TOP, TOP + HOUR), (TOP + timedelta(minutes=1), TOP + HOUR), (DAY, DAY_END)):
        question = replace(_question(organisation.id, UsageBy.KEY), start=start, end=end)
        (everyone,) = await _ask(store, question)
        assert everyone.totals.requests == 3
        assert await _ask(store, replace(question, tenant_id=globex.tenant_id)) == []
        (own,) = await _ask(store, replace(question, tenant_id=acme.tenant_id))
        assert (own.of, own.totals.requests) == ((acme.kid,), 3)


@pytest.mark.parametrize(
    "table",
    [usage_events, usage_hourly, usage_daily, quotas, idempotency, audit_log],
    ids=lambda table: table.name,
)
async def test_a_tenant_sees_no_row_of_another_without_any_where(store: Store, table) -> None:  # type: ignore[no-untyped-def]
    """Each table that holds rows of tenants shows acme its own and globex none of them."""
    acme, globex = await _keys(store)
    await SqlLedger(store.database).insert([await _own(store, _of(acme))])
    async with store.database.platform() as connection:
        for statement in _rows_of(acme):
            await connection.execute(statement)
    owners = select(table.c.tenant_id).distinct()
    seen = {}
    for key in (acme, globex):
        async with store.database.tenant(key.tenant_id) as connection:
            seen[key.tenant] = set(await connection.scalars(owners))
    assert seen["acme"] == {acme.tenant_id}
    assert seen["globex"] <= {globex.tenant_id}


def _rows_of(key: ApiKey):  # type: ignore[no-untyped-def]
    yield insert(quotas).values(
        scope_kind="tenant",
        scope_id=key.tenant_id,
        is_override=False,
        tenant_id=key.tenant_id,
        rpm=1,
    )
    yield insert(idempotency).values(
        key_id=key.id,
        idempotency_key="k",
        tenant_id=key.tenant_id,
        body_hash=b"h",
        request_id=uuid4(),
        lease_until=MORNING,
        expires_at=MORNING,
    )
    yield insert(audit_log).values(
        organisation_id=uuid4(),
        seq=1,
        at=MORNING,
        actor="a",
        actor_role="owner",
        action="a",
        object_kind="key",
        object_id="o",
        tenant_id=key.tenant_id,
        previous_hash=b"",
        hash=b"h",
        pepper_id="p",
    )


async def _keys(store: Store) -> tuple[ApiKey, ApiKey]:
    assert store.first_start is not None
    acme, globex = (issued.key for issued in store.first_start.keys)
    return acme, globex


def _of(key: ApiKey) -> UsageRow:
    return usage_row(tenant_id=key.tenant_id, key_id=key.id)


async def _own(store: Store, row: UsageRow) -> UsageRow:
    return replace(row, organisation_id=(await store.organisations.default()).id)


def _question(organisation_id: UUID, *by: UsageBy) -> UsageQuestion:
    return UsageQuestion(
        organisation_id=organisation_id, start=TOP - HOUR, end=TOP + 2 * HOUR, by=by
    )


async def _ask(store: Store, question: UsageQuestion) -> list[UsageSum]:
    return [one async for batch in SqlUsage(store.database).sums(question) for one in batch]


def _random_row(draw: random.Random, key: ApiKey) -> UsageRow:
    return replace(
        _of(key),
        at=TOP + timedelta(minutes=draw.randrange(-1800, 1800), microseconds=draw.randrange(2)),
        model=draw.choice(["a", "B", "b"]),
        tier=draw.choice(list(Tier)),
        is_batch=draw.random() < 0.5,
        input_tokens=draw.randrange(10, 1000),
        output_tokens=draw.randrange(1000),
        nano_usd=draw.randrange(10**15),
    )


def _added_up(
    rows: list[UsageRow], question: UsageQuestion, keys: dict[UUID, ApiKey]
) -> list[UsageSum]:
    """Answer a question by going through all rows."""
    sums: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0] * 5)
    for row in rows:
        wanted = (
            question.start <= row.at < question.end
            and question.tenant_id in (None, row.tenant_id)
            and question.key_id in (None, row.key_id)
            and question.model in (None, row.model)
        )
        if wanted:
            label = tuple(_label(which, row, keys[row.key_id]) for which in question.by)
            counts = (row.input_tokens, row.cached_tokens, row.output_tokens, row.nano_usd, 1)
            sums[label] = [a + b for a, b in zip(sums[label], counts, strict=True)]
    return [UsageSum(label, UsageTotals(*counts)) for label, counts in sorted(sums.items())]


def _label(which: UsageBy, row: UsageRow, key: ApiKey) -> str:
    return {
        UsageBy.DAY: f"{row.at:%Y-%m-%d}",
        UsageBy.HOUR: f"{row.at:%Y-%m-%dT%H}:00:00Z",
        UsageBy.TENANT: key.tenant,
        UsageBy.KEY: key.kid,
        UsageBy.MODEL: row.model,
        UsageBy.TIER: row.tier.value,
    }[which]
