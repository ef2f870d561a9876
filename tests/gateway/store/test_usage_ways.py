"""One look at a tenant's usage, told apart in several ways, against a real PostgreSQL."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, timedelta
from typing import Any
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import select, text

from gateway.domain.tier import Tier
from gateway.domain.usage import UsageBy, UsageQuestion, UsageRow, UsageSum, UsageTotals
from gateway.store import Store
from gateway.store.ledger import SqlLedger
from gateway.store.pools import Purpose
from gateway.store.tables import usage_hourly
from gateway.store.usage_queries import SqlUsage
from tests.gateway.usage_rows import MORNING, usage_row

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
MIDNIGHT = MORNING.replace(hour=0, minute=0, second=0, microsecond=0)
WAYS = (
    (UsageBy.DAY,),
    (UsageBy.MODEL, UsageBy.KEY),
    (UsageBy.DAY, UsageBy.KEY, UsageBy.HOUR),
    (UsageBy.TIER,),
    (),
)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/St_Johns"])
async def test_each_way_is_a_plain_sum_of_the_hours(store: Store, zone: str) -> None:
    """Days are UTC's whatever the connection's zone, over borders of days, with keys that are no
    more, for tenants without rows, and for all of them: to the nano-dollar.
    """
    draw = random.Random(11)
    assert store.first_start is not None
    acme, globex = (issued.key for issued in store.first_start.keys)
    organisation = await store.organisations.default()
    kids = {acme.id: acme.kid, globex.id: globex.kid}
    whose = [(acme.tenant_id, acme.id), (acme.tenant_id, uuid4()), (globex.tenant_id, globex.id)]
    ats = [MIDNIGHT + timedelta(minutes=draw.randrange(-1800, 1800)) for _ in range(200)]
    ats += [MIDNIGHT - timedelta(microseconds=1), MIDNIGHT, MIDNIGHT + 24 * HOUR] * 3
    rows = [
        _random_row(draw, at, organisation.id, *whose[number % 3]) for number, at in enumerate(ats)
    ]
    await SqlLedger(store.database).insert(rows)
    async with store.database.platform(Purpose.REPORTS) as connection:
        await connection.execute(text(f"SET timezone TO '{zone}'"))
        hours = [dict(row) for row in (await connection.execute(select(usage_hourly))).mappings()]
    for tenant_id in (acme.tenant_id, globex.tenant_id, uuid4(), None):
        for start, end in ((-40, 40), (-9, 15), (0, 1), (15, 24), (24, 25)):
            question = UsageQuestion(
                organisation_id=organisation.id,
                start=(MIDNIGHT + start * HOUR).astimezone(ZoneInfo("Asia/Kolkata")),
                end=MIDNIGHT + end * HOUR,
                by=(),
                tenant_id=tenant_id,
            )
            found = await _ask(store, question)
            assert found == [_plain_sum(hours, question, way, kids) for way in WAYS]


async def test_a_look_is_planned_for_who_asks(store: Store) -> None:
    """However often a connection asks, the plan is never the one for any tenant."""
    assert store.first_start is not None
    acme, _ = (issued.key for issued in store.first_start.keys)
    organisation = await store.organisations.default()
    row = usage_row(tenant_id=acme.tenant_id, key_id=acme.id, organisation_id=organisation.id)
    await SqlLedger(store.database).insert([row])
    question = UsageQuestion(
        organisation_id=organisation.id,
        start=MIDNIGHT,
        end=MIDNIGHT + 24 * HOUR,
        by=(),
        tenant_id=acme.tenant_id,
    )
    for _ in range(8):
        await _ask(store, question)
    plans = text(
        "SELECT sum(custom_plans), sum(generic_plans) FROM pg_prepared_statements "
        "WHERE statement LIKE '%usage' || '_hourly%'"
    )
    async with store.database.platform(Purpose.REPORTS) as connection:
        [[custom, generic]] = await connection.execute(plans)
    assert (custom, generic) == (8, 0)


async def _ask(store: Store, question: UsageQuestion) -> list[list[UsageSum]]:
    found: list[list[UsageSum]] = [[] for _ in WAYS]
    async for batch in SqlUsage(store.database).sums_by(question, WAYS):
        for way, one in batch:
            found[way].append(one)
    return found


def _random_row(
    draw: random.Random, at: Any, organisation_id: UUID, tenant_id: UUID, key_id: UUID
) -> UsageRow:
    return replace(
        usage_row(tenant_id=tenant_id, key_id=key_id, organisation_id=organisation_id),
        at=at,
        model=draw.choice(["a", "B", "b"]),
        tier=draw.choice(list(Tier)),
        input_tokens=draw.randrange(10, 1000),
        output_tokens=draw.randrange(1000),
        nano_usd=draw.randrange(10**15),
    )


def _plain_sum(
    hours: list[dict[str, Any]],
    question: UsageQuestion,
    way: tuple[UsageBy, ...],
    kids: Mapping[UUID, str],
) -> list[UsageSum]:
    """Answer a question of whole hours by going through all of them."""
    sums: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0] * 5)
    for hour in hours:
        is_wanted = question.start <= hour["hour"] < question.end and question.tenant_id in (
            None,
            hour["tenant_id"],
        )
        if is_wanted:
            at = hour["hour"].astimezone(UTC)
            labels = hour | {
                "day": f"{at:%Y-%m-%d}",
                "hour": f"{at:%Y-%m-%dT%H}:00:00Z",
                "key": kids.get(hour["key_id"], str(hour["key_id"])),
            }
            label = tuple(labels[which.value] for which in way)
            counts = [hour[one.name] for one in fields(UsageTotals)]
            sums[label] = [a + b for a, b in zip(sums[label], counts, strict=True)]
    return [UsageSum(label, UsageTotals(*counts)) for label, counts in sorted(sums.items())]
