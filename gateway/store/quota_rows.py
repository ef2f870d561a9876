"""Reading limits: what a scope has set, what lies over it, and what holds for a key now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, func, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.quota import PLATFORM, Quota, Scope, ScopeKind, ScopeQuota
from gateway.domain.window import Window
from gateway.store.tables import quotas

_LIMITS = [field.name for field in fields(Quota)]

# By scope, and whether it is the override.
QuotaRows = Mapping[tuple[Scope, bool], Row[*tuple[Any, ...]]]


async def quotas_in_force(
    connection: AsyncConnection,
    *,
    key_id: UUID,
    tenant_id: UUID,
    plan_id: UUID | None,
    organisation_id: UUID,
) -> tuple[tuple[ScopeQuota, ...], datetime | None]:
    """Return the limits that a key's requests meet now, the narrowest scope first.

    With them comes when an override among them ends, None where there is none.
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
    in_force = []
    for scope in scopes:
        quota = effective_quota(rows, scope, plan if scope is tenant else None)
        if not quota.is_empty:
            in_force.append(ScopeQuota(scope, quota))
    ends = [row.ends_at for row in rows.values() if row.ends_at is not None]
    return tuple(in_force), min(ends, default=None)


def quota_of(row: Row[*tuple[Any, ...]]) -> Quota:
    """Read limits from a row that has the columns of their table."""
    values = {name: getattr(row, name) for name in _LIMITS}
    if values["budget_window"] is not None:
        values["budget_window"] = Window(values["budget_window"])
    return Quota(**values)


async def quota_rows(connection: AsyncConnection, scopes: Iterable[Scope]) -> QuotaRows:
    """Read the limits of scopes and the overrides that have not ended."""
    named = [(scope.kind.value, scope.id) for scope in scopes]
    query = select(quotas).where(
        tuple_(quotas.c.scope_kind, quotas.c.scope_id).in_(named),
        or_(quotas.c.ends_at.is_(None), quotas.c.ends_at > func.now()),
    )
    return {
        (Scope(ScopeKind(row.scope_kind), row.scope_id), row.is_override): row
        for row in await connection.execute(query)
    }


def effective_quota(rows: QuotaRows, scope: Scope, plan: Scope | None) -> Quota:
    """Lay a scope's override over its own limits, and both over those of its plan."""
    layers: Sequence[tuple[Scope, bool] | None] = (
        (scope, True),
        (scope, False),
        None if plan is None else (plan, False),
    )
    effective = Quota()
    for layer in layers:
        if layer is not None and layer in rows:
            effective = effective.over(quota_of(rows[layer]))
    return effective
