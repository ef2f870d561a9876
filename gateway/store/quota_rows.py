"""Reading limits: what a scope has set, what lies over it, and what holds for a key now.

Every change of a scope's limits moves `updated_at` of a row of its own or of its plan, and the end
of an override is one too. So whoever counts can tell whether a limit has been there all the while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Row, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.quota import PLATFORM, Quota, Scope, ScopeKind, ScopeQuota
from gateway.domain.window import Window
from gateway.store.tables import quotas

_EPOCH = datetime.fromtimestamp(0, UTC)
_LIMITS = [field.name for field in fields(Quota)]


@dataclass(frozen=True, slots=True)
class QuotaRows:
    """Hold rows by scope, and whether it is the override; and when each scope's were changed."""

    rows: Mapping[tuple[Scope, bool], Row[*tuple[Any, ...]]]
    changed_us: Mapping[Scope, int]

    def effective(self, scope: Scope, plan: Scope | None) -> ScopeQuota:
        """Lay a scope's override over its own limits, and both over those of its plan.

        What operators hold of its own is covered by no override but theirs.
        """
        own, over = self.rows.get((scope, False)), self.rows.get((scope, True))
        effective = Quota()
        if over is not None:
            held = set() if own is None else {*own.operator_set} - {*over.operator_set}
            effective = replace(quota_of(over), **dict.fromkeys(held))
        if own is not None:
            effective = effective.over(quota_of(own))
        if plan is not None and (plan, False) in self.rows:
            effective = effective.over(quota_of(self.rows[plan, False]))
        changes = (self.changed_us.get(one, 0) for one in (scope, plan) if one is not None)
        return ScopeQuota(scope, effective, max(changes))


async def quotas_in_force(
    connection: AsyncConnection,
    *,
    key_id: UUID,
    tenant_id: UUID,
    plan_id: UUID | None,
    organisation_id: UUID,
) -> tuple[tuple[ScopeQuota, ...], datetime | None]:
    """Return the limits that a key's requests meet now, the narrowest scope first.

    A scope whose limits were all taken off is among them: the counters are told so. With them comes
    when an override among them ends, None where there is none.
    """
    plan = None if plan_id is None else Scope(ScopeKind.PLAN, plan_id)
    tenant = Scope(ScopeKind.TENANT, tenant_id)
    scopes = (
        Scope(ScopeKind.KEY, key_id),
        tenant,
        Scope(ScopeKind.ORGANISATION, organisation_id),
        PLATFORM,
    )
    rows = await quota_rows(connection, scopes if plan is None else (*scopes, plan))
    effective = [rows.effective(scope, plan if scope is tenant else None) for scope in scopes]
    in_force = tuple(one for one in effective if one.changed_us or not one.quota.is_empty)
    ends = [row.ends_at for row in rows.rows.values() if row.ends_at is not None]
    return in_force, min(ends, default=None)


def quota_of(row: Row[*tuple[Any, ...]]) -> Quota:
    """Read limits from a row that has the columns of their table."""
    values = {name: getattr(row, name) for name in _LIMITS}
    if values["budget_window"] is not None:
        values["budget_window"] = Window(values["budget_window"])
    return Quota(**values)


async def quota_rows(connection: AsyncConnection, scopes: Iterable[Scope]) -> QuotaRows:
    """Read the limits of scopes and the overrides that have not ended."""
    named = [(scope.kind.value, scope.id) for scope in scopes]
    has_ended = func.coalesce(quotas.c.ends_at <= func.now(), False).label("has_ended")
    query = select(quotas, has_ended).where(
        tuple_(quotas.c.scope_kind, quotas.c.scope_id).in_(named)
    )
    rows: dict[tuple[Scope, bool], Row[*tuple[Any, ...]]] = {}
    changed_us: dict[Scope, int] = {}
    for row in await connection.execute(query):
        scope = Scope(ScopeKind(row.scope_kind), row.scope_id)
        changed_at = max(row.updated_at, row.ends_at) if row.has_ended else row.updated_at
        changed_us[scope] = max(changed_us.get(scope, 0), _microseconds(changed_at))
        if not row.has_ended:
            rows[scope, row.is_override] = row
    return QuotaRows(rows, changed_us)


def _microseconds(at: datetime) -> int:
    """Return an instant in microseconds since 1970, to the last of them."""
    return (at - _EPOCH) // timedelta(microseconds=1)
