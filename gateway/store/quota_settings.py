"""Limits in PostgreSQL: what each scope has set, and what lies over it for a while.

A scope has one row of its own limits and at most one override. The first row is also the lock and
the version of both, so it is made, empty, by whatever changes the scope first; a plan's row of
`plans` plays that part for the plan.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.admin import Actor, AuditEntry
from gateway.domain.ceilings import held_limits, limits_of
from gateway.domain.quota import Quota, Scope, ScopeKind
from gateway.domain.quota_settings import QuotaHolder, QuotaOverride, QuotaState, plain_quota
from gateway.errors import NotFound, SetByOperator, VersionConflict
from gateway.store.audit_chain import AuditChain
from gateway.store.database import Database
from gateway.store.quota_rows import QuotaRows, quota_of, quota_rows
from gateway.store.tables import plans, quotas

Change = Callable[[AsyncConnection, QuotaState], Awaitable[None]]


class SqlQuotaSettings:
    """Implement `QuotaSettings`."""

    def __init__(self, database: Database, audit: AuditChain) -> None:
        self._database = database
        self._audit = audit

    async def get(self, holder: QuotaHolder) -> QuotaState:
        async with self._database.platform() as connection:
            return await _state(connection, holder)

    async def put(
        self, actor: Actor, holder: QuotaHolder, quota: Quota, *, version: int | None = None
    ) -> QuotaState:
        async def change(connection: AsyncConnection, before: QuotaState) -> None:
            held = _held_after(actor, before, quota)
            await write_quota(connection, holder, quota, held)

        return await self._change(actor, holder, "quota.set", version, change)

    async def patch(
        self,
        actor: Actor,
        holder: QuotaHolder,
        changes: Mapping[str, object],
        *,
        version: int | None = None,
    ) -> QuotaState:
        async def change(connection: AsyncConnection, before: QuotaState) -> None:
            quota = replace(before.quota, **changes)  # type: ignore[arg-type]  # checked above
            held = _held_after(actor, before, quota, frozenset(changes))
            await write_quota(connection, holder, quota, held)

        return await self._change(actor, holder, "quota.set", version, change)

    async def override(
        self,
        actor: Actor,
        holder: QuotaHolder,
        override: QuotaOverride,
        *,
        version: int | None = None,
    ) -> QuotaState:
        async def change(connection: AsyncConnection, before: QuotaState) -> None:
            laid = limits_of(override.quota)
            _check_override(actor, before, laid)
            held = () if actor.is_of_tenant or not _is_marked(holder) else sorted(laid)
            await connection.execute(_removal(holder.scope))
            await connection.execute(
                insert(quotas).values(
                    **quota_place(holder, is_override=True),
                    **plain_quota(override.quota),
                    operator_set=held,
                    ends_at=override.ends_at,
                    reason=override.reason,
                )
            )

        return await self._change(actor, holder, "quota.override", version, change)

    async def clear(
        self, actor: Actor, holder: QuotaHolder, *, version: int | None = None
    ) -> QuotaState:
        async def change(connection: AsyncConnection, before: QuotaState) -> None:
            _check_override(actor, before, frozenset())
            await connection.execute(_removal(holder.scope))

        return await self._change(actor, holder, "quota.clear_override", version, change)

    async def _change(
        self, actor: Actor, holder: QuotaHolder, action: str, version: int | None, change: Change
    ) -> QuotaState:
        async with self._database.platform() as connection:
            await lock_quota(connection, holder)
            before = await _state(connection, holder)
            if version not in (None, before.version):
                raise VersionConflict(before)
            await change(connection, before)
            after = await _state(connection, holder)
            if _settings_of(before) == _settings_of(after):
                return before
            await advance_quota(connection, holder)
            entry = quota_entry(action, before, after)
            await self._audit.append(connection, actor, entry)
            return await _state(connection, holder)


async def lock_quota(connection: AsyncConnection, holder: QuotaHolder) -> None:
    """Be the only one who changes a scope's limits. Raises: `NotFound`: its plan is gone."""
    scope = holder.scope
    if scope.kind is ScopeKind.PLAN:
        query = select(plans.c.id).where(plans.c.id == scope.id).with_for_update()
        if await connection.scalar(query) is None:
            raise NotFound("There is no plan of that name.", param="plan")
        return
    empty = upsert(quotas).values(**quota_place(holder, is_override=False), version=0)
    await connection.execute(empty.on_conflict_do_nothing())
    await connection.execute(
        select(quotas.c.version).where(*_own(scope), ~quotas.c.is_override).with_for_update()
    )


async def write_quota(
    connection: AsyncConnection, holder: QuotaHolder, quota: Quota, held: Sequence[str] = ()
) -> None:
    """Set a scope's own limits, all of them, and which of them operators hold."""
    # The clock and not the transaction's beginning: what waited for the lock comes later.
    values = {
        **plain_quota(quota),
        "operator_set": held,
        "updated_at": func.clock_timestamp(),
    }
    written = upsert(quotas).values(**quota_place(holder, is_override=False), **values, version=0)
    await connection.execute(
        written.on_conflict_do_update(
            index_elements=[quotas.c.scope_kind, quotas.c.scope_id, quotas.c.is_override],
            set_=values,
        )
    )


async def advance_quota(connection: AsyncConnection, holder: QuotaHolder) -> None:
    """Make the next version of a scope's limits."""
    scope = holder.scope
    if scope.kind is ScopeKind.PLAN:
        await connection.execute(
            update(plans).where(plans.c.id == scope.id).values(version=plans.c.version + 1)
        )
        return
    await connection.execute(
        update(quotas)
        .where(*_own(scope), ~quotas.c.is_override)
        .values(version=quotas.c.version + 1, updated_at=func.clock_timestamp())
    )


async def note_new_plan(connection: AsyncConnection, holder: QuotaHolder) -> None:
    """Note that a tenant's limits are another plan's from now on."""
    now = {"updated_at": func.clock_timestamp()}
    noted = upsert(quotas).values(**quota_place(holder, is_override=False), **now, version=0)
    await connection.execute(
        noted.on_conflict_do_update(
            index_elements=[quotas.c.scope_kind, quotas.c.scope_id, quotas.c.is_override],
            set_=now,
        )
    )


async def _state(connection: AsyncConnection, holder: QuotaHolder) -> QuotaState:
    scope, plan = holder.scope, plan_scope(holder)
    found = await quota_rows(connection, (scope,) if plan is None else (scope, plan))
    state = state_of(holder, found)
    if scope.kind is ScopeKind.PLAN:
        version = await connection.scalar(select(plans.c.version).where(plans.c.id == scope.id))
        state = replace(state, version=version or 0)
    return state


def plan_scope(holder: QuotaHolder) -> Scope | None:
    """Return the plan whose limits lie under a holder's own."""
    return None if holder.plan_id is None else Scope(ScopeKind.PLAN, holder.plan_id)


def state_of(holder: QuotaHolder, found: QuotaRows) -> QuotaState:
    """Read what a scope has set from rows of its own and of its plan; a plan's version is not
    there."""
    scope, plan = holder.scope, plan_scope(holder)
    own, over = found.rows.get((scope, False)), found.rows.get((scope, True))
    return QuotaState(
        holder=holder,
        quota=Quota() if own is None else quota_of(own),
        override=None
        if over is None
        else QuotaOverride(quota_of(over), over.ends_at, over.reason, bool(over.operator_set)),
        effective=found.effective(scope, plan),
        version=0 if own is None else own.version,
        operator_set=() if own is None else tuple(own.operator_set),
    )


def quota_entry(action: str, before: QuotaState, after: QuotaState) -> AuditEntry:
    """Describe a change of limits."""
    holder = after.holder
    return AuditEntry(
        action=action,
        object_kind="quota",
        object_id=str(holder.scope),
        organisation_id=holder.organisation_id,
        tenant_id=holder.tenant_id,
        before=_public(before),
        after=_public(after),
    )


def _settings_of(state: QuotaState) -> tuple[object, ...]:
    """Return what somebody has set, without when."""
    return state.quota, state.override, state.operator_set


def _is_marked(holder: QuotaHolder) -> bool:
    """Tell whether others than operators set limits there at all."""
    return holder.scope.kind is ScopeKind.KEY


def _held_after(
    actor: Actor, before: QuotaState, after: Quota, changed: frozenset[str] | None = None
) -> tuple[str, ...]:
    """Return what operators hold of limits that are being set. Raises: `SetByOperator`."""
    held = before.operator_set
    if not actor.is_of_tenant:
        return held_limits(held, after, changed) if _is_marked(before.holder) else ()
    touched = [name for name in held if getattr(before.quota, name) != getattr(after, name)]
    if touched:
        raise SetByOperator(touched)
    return held


def _check_override(actor: Actor, before: QuotaState, laid: frozenset[str]) -> None:
    """Refuse a tenant's owner who would replace an operator's override, or cover its limits."""
    if not actor.is_of_tenant:
        return
    if before.override is not None and before.override.is_operators:
        raise SetByOperator(["override"])
    if touched := laid & set(before.operator_set):
        raise SetByOperator(touched)


def quota_place(holder: QuotaHolder, *, is_override: bool) -> dict[str, object]:
    """Return what names a row of limits."""
    return {
        "scope_kind": holder.scope.kind.value,
        "scope_id": holder.scope.id,
        "is_override": is_override,
        "tenant_id": holder.tenant_id,
    }


def _own(scope: Scope) -> tuple[Any, Any]:  # two conditions, whose types SQLAlchemy keeps apart
    return quotas.c.scope_kind == scope.kind.value, quotas.c.scope_id == scope.id


def _removal(scope: Scope) -> Any:  # a DELETE
    return delete(quotas).where(*_own(scope), quotas.c.is_override)


def _public(state: QuotaState) -> dict[str, Any]:
    override = state.override
    return {
        "name": state.holder.name,
        "quota": plain_quota(state.quota),
        "operator_set": state.operator_set,
        "override": None
        if override is None
        else {
            **plain_quota(override.quota),
            "ends_at": override.ends_at.isoformat(),
            "reason": override.reason,
        },
    }
