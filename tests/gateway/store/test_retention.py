"""What goes after its time, or where there is too much of it, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, insert, select, text

from gateway.domain.idempotency import Claim
from gateway.domain.quota import Metric
from gateway.errors import AnswerNotKept
from gateway.services.inference import IdempotencyService
from gateway.settings import Settings
from gateway.store import Store, open_store
from gateway.store.partitions import Partitions
from gateway.store.retention import Retention
from gateway.store.tables import idempotency, quota_events
from tests.gateway.store.batch_rows import alter, running_batch

pytestmark = pytest.mark.anyio

_HASH = b"h" * 32
_ROW = idempotency.c


def retention(store: Store, **changes: Any) -> Retention:
    given = {"event_days": 62, "answer_hours": 24, "answer_bytes": 1000, "batch_days": 90}
    given |= {"response_days": 30, "responses": 100, "response_bytes": 1 << 20}
    given["num_rows"] = 2
    return Retention(store.database, **{**given, **changes})


def key_of(store: Store, tenant: int) -> tuple[UUID, UUID]:
    assert store.first_start is not None
    made = store.first_start.keys[tenant].key
    return made.tenant_id, made.id


async def answered(store: Store, tenant: int, name: str, size_bytes: int, age_h: float) -> None:
    """Keep an answer that was claimed so long ago."""
    tenant_id, key_id = key_of(store, tenant)
    row = {
        "tenant_id": tenant_id,
        "key_id": key_id,
        "idempotency_key": name,
        "body_hash": _HASH,
        "request_id": uuid4(),
        "lease_until": func.now(),
        "expires_at": func.now() + timedelta(hours=24 - age_h),
        "status": 200,
        "content_type": "application/json",
        "answer": b"x" * size_bytes,
    }
    async with store.database.platform() as connection:
        await connection.execute(insert(idempotency).values(row))


async def kept(store: Store, tenant: int) -> list[str]:
    tenant_id, _ = key_of(store, tenant)
    async with store.database.platform() as connection:
        names = select(_ROW.idempotency_key).where(
            _ROW.tenant_id == tenant_id, _ROW.answer.is_not(None)
        )
        return sorted(await connection.scalars(names))


async def test_the_oldest_answers_of_a_tenant_go_above_its_bytes(store: Store) -> None:
    """Down to the bound and no further, in batches; another tenant's stay, of whatever age."""
    for age in range(7):
        await answered(store, 0, f"a{age}", 250, age)
    await answered(store, 1, "b", 1000, 20)
    assert await retention(store).answers() == 3
    assert await kept(store, 0) == ["a0", "a1", "a2", "a3"]
    assert await kept(store, 1) == ["b"]
    assert await retention(store).answers() == 0


async def test_an_answer_that_went_is_not_computed_again(store: Store) -> None:
    """Its record stays: who sends the request again is told, and another body is a mistake."""
    await answered(store, 0, "a", 2000, 1)
    await retention(store).answers()
    tenant_id, key_id = key_of(store, 0)
    service = IdempotencyService(store.idempotency, store.secrets)
    with pytest.raises(AnswerNotKept):
        await service.claim(Claim(tenant_id, key_id, "a", uuid4()), _HASH)


async def test_answers_go_by_their_age(store: Store) -> None:
    """Those that were claimed longer ago than is kept, however small; a run goes on."""
    for age in (0.5, 1.5, 2.5, 23):
        await answered(store, 0, f"a{age}", 1, age)
    tenant_id, key_id = key_of(store, 0)
    running = Claim(tenant_id, key_id, "running", uuid4())
    assert await store.idempotency.claim(running, _HASH, lease_s=60, keep_s=60) is None
    assert await retention(store, answer_hours=2).answers() == 2
    assert await kept(store, 0) == ["a0.5", "a1.5"]
    async with store.database.platform() as connection:
        assert await connection.scalar(select(func.count()).select_from(idempotency)) == 5


async def test_old_events_go_and_those_to_be_delivered_stay(store: Store) -> None:
    """All that are too old, in batches; not what a webhook still has to be told."""
    tenant_id, _ = key_of(store, 0)
    for age_days, waits in ((61, False), (63, False), (64, False), (65, False), (66, True)):
        row = {
            "id": uuid4(),
            "scope_kind": "tenant",
            "scope_id": tenant_id,
            "tenant_id": tenant_id,
            "metric": Metric.BUDGET.value,
            "window_start": func.now() - timedelta(days=age_days),
            "percent": 50,
            "used": 1,
            "amount": 2,
            "at": func.now() - timedelta(days=age_days),
            "next_attempt_at": func.now() if waits else None,
        }
        async with store.database.platform() as connection:
            await connection.execute(insert(quota_events).values(row))
    assert await retention(store).events() == 3
    age = text("SELECT extract(day FROM now() - at)::int FROM quota_events ORDER BY 1")
    async with store.database.platform() as connection:
        assert (await connection.scalars(age)).all() == [61, 66]


async def test_one_gateway_does_it_at_a_time(store: Store) -> None:
    """Another one that comes meanwhile leaves it, and finds nothing to wait for."""
    await answered(store, 0, "a", 2000, 2)
    async with store.database.platform() as connection:
        lock = text("SELECT pg_advisory_xact_lock(7308325614571844470)")
        await connection.execute(lock)
        assert await retention(store).answers() == 0
        assert await retention(store, answer_hours=1).answers() == 0
    assert await retention(store).answers() == 1


async def test_a_server_keeps_what_its_settings_say(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a store is open, on its own: days of the ledger at the start, answers soon."""
    monkeypatch.setattr("gateway.store.retention.ANSWERS_EVERY_S", 0.01)
    left = select(func.count()).where(_ROW.answer.is_not(None))
    days = text("SELECT count(*) FROM pg_class WHERE relname ~ '^usage_events_2001'")
    async with open_store(settings) as store:
        await Partitions(store.database, clock=_In2001()).ensure()
        await answered(store, 0, "a", 2 << 20, 1)
    few = settings.model_copy(update={"ledger_days": 62, "keyed_answers_mib": 1})
    async with asyncio.timeout(10), open_store(few) as store:
        async with store.database.platform() as connection:
            assert await connection.scalar(days) == 0
        while True:
            async with store.database.platform() as connection:
                if not await connection.scalar(left):
                    break
            await asyncio.sleep(0.01)


class _In2001:
    def time(self) -> float:
        return 1_000_000_000.0

    def monotonic(self) -> float:
        return 0.0


async def test_batches_go_so_many_days_after_they_ended(store: Store) -> None:
    """In steps, with their idempotency keys; one that has not ended stays, however old."""
    old = [await running_batch(store, 1, idempotency_key=str(nth)) for nth in range(5)]
    for batch in old:
        ended = "ended_at = now() - interval '91 days', state = 'completed'"
        await alter(store, "batches", ended, batch)
    open_, recent = await running_batch(store, 1), await running_batch(store, 1)
    await alter(store, "batches", "created_at = now() - interval '900 days'", open_)
    ended = "ended_at = now() - interval '89 days', state = 'completed'"
    await alter(store, "batches", ended, recent)
    assert await retention(store).batches() == 5
    assert await store.batches.get(old[0].tenant_id, old[0].id) is None
    for batch in (open_, recent):
        assert await store.batches.get(batch.tenant_id, batch.id) is not None
    assert await retention(store).batches() == 0
