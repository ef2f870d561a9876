"""Writing what was decided to what is held, many rows a statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

from sqlalchemy import bindparam, func, insert, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain import ApiKey, Tenant
from gateway.domain.admin import AuditEntry
from gateway.domain.desired import (
    KeyWrite,
    PlanWrite,
    PriceWrite,
    QuotaWrite,
    TenantWrite,
    Write,
)
from gateway.domain.quota import Quota, Scope, ScopeKind, ScopeQuota
from gateway.domain.quota_settings import QuotaHolder, QuotaState, plain_quota
from gateway.store.key_rows import key_entry
from gateway.store.organisations import tenant_entry
from gateway.store.plans import plan_entry
from gateway.store.prices import price_entry, price_of
from gateway.store.quota_rows import quota_rows
from gateway.store.quota_settings import plan_scope, quota_entry, quota_place
from gateway.store.tables import key_secrets, keys, plans, prices, quotas, tenants
from gateway.turns import in_chunks

T = TypeVar("T")

_PLACE: Final = [quotas.c.scope_kind, quotas.c.scope_id, quotas.c.is_override]
_SECRET: Final = ("pepper_id", "mac", "expires_at", "is_tagged")


class SettingsWriter:
    """Write what was decided to what is held, and collect what the audit log is to say of it."""

    def __init__(self, connection: AsyncConnection, organisation_id: UUID) -> None:
        self._connection = connection
        self._organisation_id = organisation_id
        self.entries: list[AuditEntry] = []

    async def write(self, writes: Sequence[Write]) -> None:
        for of_plans in in_chunks(_of(writes, PlanWrite)):
            await self._plans(of_plans)
        await self._prices(_of(writes, PriceWrite))
        for of_tenants in in_chunks(_of(writes, TenantWrite)):
            await self._tenants(of_tenants)
        for of_keys in in_chunks(_of(writes, KeyWrite)):
            await self._keys(of_keys)
        for of_quotas in in_chunks(_of(writes, QuotaWrite)):
            await self._quotas(of_quotas)

    async def _plans(self, writes: Sequence[PlanWrite]) -> None:
        made = [
            {"id": one.after.id, "organisation_id": self._organisation_id, "name": one.after.name}
            for one in writes
            if one.before is None
        ]
        await self._many(insert(plans), made)
        advanced = update(plans).where(plans.c.id == bindparam("of"))
        advanced = advanced.values(version=plans.c.version + 1)
        await self._many(advanced, [{"of": one.after.id} for one in writes if one.before])
        holders = [
            (QuotaHolder(Scope(ScopeKind.PLAN, one.after.id), one.after.name, UUID(int=0)), one)
            for one in writes
        ]
        await self._write_limits([(holder, one.after.quota, ()) for holder, one in holders])
        for one in writes:
            action = "plan.create" if one.before is None else "plan.update"
            self.entries.append(plan_entry(action, one.after, one.before, one.after))

    async def _prices(self, writes: Sequence[PriceWrite]) -> None:
        for one in writes:
            version = 1 if one.before is None else one.before.version + 1
            row = insert(prices).values(id=uuid4(), version=version, **asdict(one.draft))
            added = price_of((await self._connection.execute(row.returning(*prices.c))).one())
            self.entries.append(price_entry(self._organisation_id, one.before, added))

    async def _tenants(self, writes: Sequence[TenantWrite]) -> None:
        made = [{"id": one.after.id, **_tenant_row(one.after)} for one in writes if not one.before]
        await self._many(insert(tenants), made)
        changed = [one for one in writes if one.before is not None]
        names = list(_tenant_row(changed[0].after)) if changed else []
        statement = update(tenants).where(tenants.c.id == bindparam("of"))
        statement = statement.values(
            version=tenants.c.version + 1, **{name: bindparam(f"new_{name}") for name in names}
        )
        rows = [
            {"of": one.after.id}
            | {f"new_{name}": value for name, value in _tenant_row(one.after).items()}
            for one in changed
        ]
        await self._many(statement, rows)
        moved = [
            one.after for one in changed if one.before and one.before.plan_id != one.after.plan_id
        ]
        await self._note_plans(moved)
        for one in writes:
            action = "tenant.create" if one.before is None else "tenant.update"
            self.entries.append(tenant_entry(action, one.before, one.after))

    async def _note_plans(self, moved: Sequence[Tenant]) -> None:
        """Note that limits of tenants are another plan's from now on."""
        now = {"updated_at": func.clock_timestamp()}
        noted = upsert(quotas).values(now)
        noted = noted.on_conflict_do_update(index_elements=_PLACE, set_=now)
        rows = [
            quota_place(
                QuotaHolder(Scope(ScopeKind.TENANT, one.id), one.name, one.organisation_id, one.id),
                is_override=False,
            )
            | {"version": 0}
            for one in moved
        ]
        await self._many(noted, rows)

    async def _keys(self, writes: Sequence[KeyWrite]) -> None:
        made = [one for one in writes if one.before is None]
        rows = [
            {
                "id": one.after.id,
                "tenant_id": one.after.tenant_id,
                "kid": one.after.kid,
                "expires_at": one.after.expires_at,
                "name": one.after.name,
                **_key_row(one.after),
            }
            for one in made
        ]
        await self._many(insert(keys), rows)
        secrets = []
        for one in made:
            assert one.secret is not None, "a new key has one"
            secret = {"key_id": one.after.id, "tenant_id": one.after.tenant_id, "id": uuid4()}
            secrets.append(secret | {name: getattr(one.secret, name) for name in _SECRET})
        await self._many(insert(key_secrets), secrets)
        changed = [one for one in writes if one.before is not None]
        names = list(_key_row(changed[0].after)) if changed else []
        statement = update(keys).where(keys.c.id == bindparam("of"))
        statement = statement.values(
            version=keys.c.version + 1, **{name: bindparam(f"new_{name}") for name in names}
        )
        rows = [
            {"of": one.after.id}
            | {f"new_{name}": value for name, value in _key_row(one.after).items()}
            for one in changed
        ]
        await self._many(statement, rows)
        for one in writes:
            action = "key.create" if one.before is None else "key.update"
            self.entries.append(key_entry(action, self._organisation_id, one.before, one.after))

    async def _quotas(self, writes: Sequence[QuotaWrite]) -> None:
        await self._write_limits([(one.holder, one.quota, one.operator_set) for one in writes])
        for one in writes:
            nothing = ScopeQuota(one.holder.scope, Quota(), 0)
            before = one.before or QuotaState(one.holder, Quota(), None, nothing, 0)
            after = replace(before, quota=one.quota, operator_set=one.operator_set)
            self.entries.append(quota_entry("quota.set", before, after))

    async def _write_limits(
        self, given: Sequence[tuple[QuotaHolder, Quota, tuple[str, ...]]]
    ) -> None:
        """Set limits of scopes, as their next versions."""
        now = {"updated_at": func.clock_timestamp()}
        written = upsert(quotas).values(now)
        names = [*plain_quota(Quota()), "operator_set"]
        written = written.on_conflict_do_update(
            index_elements=_PLACE,
            set_={
                **{name: written.excluded[name] for name in names},
                **now,
                "version": quotas.c.version + 1,
            },
        )
        rows = [
            quota_place(holder, is_override=False)
            | plain_quota(quota)
            | {"operator_set": held, "version": 1}
            for holder, quota, held in given
        ]
        await self._many(written, rows)

    async def _many(self, statement: Any, rows: list[dict[str, Any]]) -> None:
        if rows:
            await self._connection.execute(statement, rows)


async def in_force(connection: AsyncConnection, writes: Sequence[Write]) -> list[ScopeQuota]:
    """Return the limits of scopes that had been there, as they are now."""
    holders = [one.holder for one in _of(writes, QuotaWrite) if one.before is not None]
    found: list[ScopeQuota] = []
    for chunk in in_chunks(holders):
        of_plans = {plan for one in chunk if (plan := plan_scope(one)) is not None}
        rows = await quota_rows(connection, [*(one.scope for one in chunk), *of_plans])
        found += [rows.effective(one.scope, plan_scope(one)) for one in chunk]
    return found


def _of(writes: Sequence[Write], kind: type[T]) -> list[T]:
    return [one for one in writes if isinstance(one, kind)]


def _tenant_row(tenant: Tenant) -> dict[str, Any]:
    return {
        "organisation_id": tenant.organisation_id,
        "name": tenant.name,
        "weight": tenant.weight,
        "plan_id": tenant.plan_id,
        "org_id": tenant.org_id,
        **asdict(tenant.slo),
        **asdict(tenant.ceilings),
    }


def _key_row(key: ApiKey) -> dict[str, Any]:
    return {
        "max_tier": key.max_tier.value,
        "models": key.models,
        "cidrs": key.cidrs,
        "allows_batch": key.allows_batch,
        "admin_read": key.admin_read,
        "operator_set": key.operator_set,
    }
