"""Threshold events in PostgreSQL, which are the webhook's outbox too.

`next_attempt_at` is set while an event is to be delivered. Who claims one moves that into the
future, as a lease: a gateway that dies with it leaves it to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Row, func, select, update
from sqlalchemy.dialects.postgresql import insert

from gateway.domain.quota import Metric, Scope, ScopeKind
from gateway.domain.quota_event import DueEvent, QuotaEvent
from gateway.store.database import Database
from gateway.store.pools import Purpose
from gateway.store.tables import quota_events, tenants

_ROW: Final = quota_events.c
_ONCE: Final = [_ROW.scope_kind, _ROW.scope_id, _ROW.metric, _ROW.window_start, _ROW.percent]


class SqlQuotaEvents:
    """Implement `QuotaEventStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, event: QuotaEvent, *, is_to_deliver: bool) -> bool:
        statement = (
            insert(quota_events)
            .values(
                id=event.id,
                at=event.at,
                scope_kind=event.scope.kind.value,
                scope_id=event.scope.id,
                tenant_id=event.tenant_id,
                metric=event.metric.value,
                window_start=event.window_start,
                percent=event.percent,
                used=event.used,
                amount=event.amount,
                next_attempt_at=func.now() if is_to_deliver else None,
            )
            .on_conflict_do_nothing(index_elements=_ONCE)
        )
        async with self._database.platform(Purpose.LEDGER) as connection:
            return (await connection.execute(statement)).rowcount == 1

    async def claim_due(self, limit: int, *, lease_s: float) -> Sequence[DueEvent]:
        # Tenants in turn: of one that raised thousands the other's would wait behind all.
        turn = func.row_number().over(partition_by=_ROW.tenant_id, order_by=_ROW.next_attempt_at)
        is_due = _ROW.next_attempt_at <= func.now()
        turns = select(_ROW.id, turn.label("turn")).where(is_due).subquery()
        # Materialized: a plan that ran it again would claim more than the limit.
        due = (
            select(_ROW.id)
            .join(turns, turns.c.id == _ROW.id)
            .where(is_due)
            .order_by(turns.c.turn, _ROW.next_attempt_at)
            .limit(limit)
            .with_for_update(of=quota_events, skip_locked=True)
            .cte("due")
            .prefix_with("MATERIALIZED")
        )
        named = select(tenants.c.name).where(tenants.c.id == _ROW.tenant_id).scalar_subquery()
        statement = (
            update(quota_events)
            .where(_ROW.id == due.c.id)
            .values(
                attempts=_ROW.attempts + 1,
                next_attempt_at=func.now() + timedelta(seconds=lease_s),
            )
            .returning(*_ROW, named.label("tenant"))
        )
        async with self._database.platform(Purpose.LEDGER) as connection:
            return [_due(row) for row in await connection.execute(statement)]

    async def delivered(self, event_id: UUID) -> None:
        await self._set(event_id, delivered_at=func.now(), next_attempt_at=None)

    async def failed(self, event_id: UUID, *, retry_in_s: float | None) -> None:
        at = None if retry_in_s is None else func.now() + timedelta(seconds=retry_in_s)
        await self._set(event_id, next_attempt_at=at)

    async def _set(self, event_id: UUID, **values: object) -> None:
        # Who outlived its lease, frozen perhaps, may say so of what another has delivered since.
        is_open = _ROW.delivered_at.is_(None)
        statement = update(quota_events).where(_ROW.id == event_id, is_open).values(**values)
        async with self._database.platform(Purpose.LEDGER) as connection:
            await connection.execute(statement)


def _due(row: Row[*tuple[Any, ...]]) -> DueEvent:
    event = QuotaEvent(
        id=row.id,
        at=row.at,
        scope=Scope(ScopeKind(row.scope_kind), row.scope_id),
        tenant_id=row.tenant_id,
        metric=Metric(row.metric),
        window_start=row.window_start,
        percent=row.percent,
        used=row.used,
        amount=row.amount,
    )
    return DueEvent(event, row.tenant, row.attempts)
