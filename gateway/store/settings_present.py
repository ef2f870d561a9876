"""Reading what there is of what is wanted, and holding it where it is to be changed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Select,
    Text,
    any_,
    func,
    literal,
    or_,
    select,
    text,
    tuple_,
)
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain import ApiKey, Organisation, Tenant
from gateway.domain.desired import Desired, Present
from gateway.domain.page import PageRequest
from gateway.domain.plan import Plan
from gateway.domain.price import Price
from gateway.domain.quota import PLATFORM, Scope, ScopeKind
from gateway.domain.quota_settings import QuotaHolder, QuotaState
from gateway.errors import InvalidRequest
from gateway.store.key_rows import api_key, described_keys
from gateway.store.keyset import Keyset
from gateway.store.organisations import described_tenants, tenant_of
from gateway.store.plans import described_plans, plan_of
from gateway.store.prices import current_prices, lock_prices, price_of
from gateway.store.quota_rows import quota_rows
from gateway.store.quota_settings import quota_place, state_of
from gateway.store.tables import keys, orgs, plans, prices, quotas, tenants
from gateway.turns import in_chunks

T = TypeVar("T")

# Of each kind, what is not wanted to be anything is named up to here.
_OTHERS: Final = 1_000
# More than may be named at a time, as several keys of a tenant may have one name.
_MOST_KEYS: Final = 6_000
_KEY_ORDER: Final = Keyset((keys.c.id,))


class PresentReader:
    """Read what there is of what is wanted, and hold it where it is to be changed."""

    def __init__(
        self,
        connection: AsyncConnection,
        organisation: Organisation,
        desired: Desired,
        *,
        is_locking: bool,
    ) -> None:
        self._connection = connection
        self._organisation = organisation
        self._desired = desired
        self._is_locking = is_locking

    async def read(self) -> Present:
        desired = self._desired
        found_plans = {plan.name: plan for plan in await self._plans()}
        found_tenants = {tenant.name: tenant for tenant in await self._tenants()}
        found_keys = await self._keys(list(found_tenants.values()))
        found_quotas = await self._quotas(found_tenants, found_keys)
        if self._is_locking and desired.prices:
            await lock_prices(self._connection)
        found_prices = {price.model: price for price in await self._prices()}
        by_name: dict[tuple[str, str], list[ApiKey]] = {}
        for key in found_keys:
            by_name.setdefault((key.tenant, key.name), []).append(key)
        return Present(
            organisation_id=self._organisation.id,
            organisation=self._organisation.name,
            plans=found_plans,
            prices=found_prices,
            tenants=found_tenants,
            keys=by_name,
            num_keys=await self._num_keys([tenant.id for tenant in found_tenants.values()]),
            quotas=found_quotas,
            others=await self._others(found_tenants),
            orgs=await self._orgs(),
        )

    async def _plans(self) -> list[Plan]:
        of_tenants = {tenant.fields.get("plan") or "" for tenant in self._desired.tenants}
        names = sorted({*self._desired.plans, *of_tenants})
        mine = plans.c.organisation_id == self._organisation.id
        if self._is_locking:
            # Weaker than what changes a plan alone takes, so that tenants can be put on it.
            locked = select(plans.c.id).where(mine).order_by(plans.c.name)
            await self._named(locked.with_for_update(key_share=True), plans.c.name, names, tuple)
        return await self._named(described_plans().where(mine), plans.c.name, names, plan_of)

    async def _orgs(self) -> dict[str, UUID]:
        names = sorted({tenant.fields.get("org") or "" for tenant in self._desired.tenants})
        query = select(orgs.c.name, orgs.c.id).order_by(orgs.c.name)
        query = query.where(orgs.c.organisation_id == self._organisation.id)
        if self._is_locking:
            query = query.with_for_update(read=True, key_share=True)
        return dict(await self._named(query, orgs.c.name, names, tuple))

    async def _tenants(self) -> list[Tenant]:
        query = described_tenants().where(tenants.c.organisation_id == self._organisation.id)
        query = query.order_by(tenants.c.name)
        if self._is_locking:
            query = query.with_for_update(of=tenants, key_share=True)
        names = sorted(tenant.name for tenant in self._desired.tenants)
        return await self._named(query, tenants.c.name, names, tenant_of)

    async def _keys(self, found: Sequence[Tenant]) -> list[ApiKey]:
        ids = {tenant.name: tenant.id for tenant in found}
        names = sorted(
            (ids[tenant.name], key.name)
            for tenant in self._desired.tenants
            for key in tenant.keys
            if tenant.name in ids
        )
        query = described_keys().where(*_are_live())
        if self._is_locking:
            query = query.with_for_update(of=keys, key_share=True)
        # A tenant may have made any number of keys of one name.
        live: list[ApiKey] = []
        for chunk in in_chunks(names):
            named = query.where(tuple_(keys.c.tenant_id, keys.c.name).in_(chunk))
            asked = PageRequest(_MOST_KEYS - len(live))
            page = await _KEY_ORDER.page(self._connection, named, asked, api_key)
            live += page.data
            if page.next is not None or len(live) >= _MOST_KEYS:
                [(tenant, number)] = Counter(key.tenant for key in live).most_common(1)
                raise InvalidRequest(
                    f"{_MOST_KEYS:,} live keys or more have the names of keys that are applied, of "
                    f"tenant '{tenant}' alone {number:,}: leave it out, or revoke some and give it "
                    "a 'max_keys'.",
                    code="too_many_entries",
                )
        return live

    async def _prices(self) -> list[Price]:
        models = sorted(self._desired.prices)
        return await self._named(current_prices(), prices.c.model, models, price_of)

    async def _num_keys(self, ids: Sequence[UUID]) -> dict[UUID, int]:
        query = select(keys.c.tenant_id, func.count()).group_by(keys.c.tenant_id)
        query = query.where(*_are_live())
        return dict(await self._named(query, keys.c.tenant_id, ids, tuple))

    async def _quotas(
        self, found: dict[str, Tenant], live: Sequence[ApiKey]
    ) -> dict[Scope, QuotaState]:
        """Read the limits of scopes that are wanted to have some."""
        # On a thread, as it is about all that is wanted.
        holders = await asyncio.to_thread(self._holders, found, live)
        states: dict[Scope, QuotaState] = {}
        for chunk in in_chunks(holders):
            if self._is_locking:
                await _lock(self._connection, chunk)
            rows = await quota_rows(self._connection, [one.scope for one in chunk])
            states |= {one.scope: state_of(one, rows) for one in chunk}
        return states

    def _holders(self, found: dict[str, Tenant], live: Sequence[ApiKey]) -> list[QuotaHolder]:
        """List the scopes of those limits, in one order whoever asks."""
        listed = self._wanted_holders(found, live)
        return sorted(listed, key=lambda one: (one.scope.kind.value, one.scope.id))

    def _wanted_holders(
        self, found: dict[str, Tenant], live: Sequence[ApiKey]
    ) -> Iterable[QuotaHolder]:
        organisation = self._organisation
        for kind in self._desired.scopes:
            if kind is ScopeKind.PLATFORM:
                yield QuotaHolder(PLATFORM, "platform", organisation.id)
            else:
                scope = Scope(kind, organisation.id)
                yield QuotaHolder(scope, organisation.name, organisation.id)
        with_limits = set()
        for wanted in self._desired.tenants:
            with_limits |= {(wanted.name, key.name) for key in wanted.keys if key.quota is not None}
            tenant = found.get(wanted.name)
            if tenant is not None and wanted.quota is not None:
                scope = Scope(ScopeKind.TENANT, tenant.id)
                yield QuotaHolder(scope, tenant.name, organisation.id, tenant.id, tenant.plan_id)
        for key in live:
            if (key.tenant, key.name) in with_limits:
                scope = Scope(ScopeKind.KEY, key.id)
                yield QuotaHolder(scope, key.kid, organisation.id, key.tenant_id, tenant=key.tenant)

    async def _others(self, found: dict[str, Tenant]) -> list[str]:
        """Name what is not wanted to be anything, up to a number of each."""
        desired, connection = self._desired, self._connection
        organised = plans.c.organisation_id == self._organisation.id
        mine = tenants.c.organisation_id == self._organisation.id
        named = sorted(tenant.name for tenant in desired.tenants)
        of_plans = select(plans.c.name).where(organised, ~_among(plans.c.name, desired.plans))
        of_prices = select(prices.c.model).where(~_among(prices.c.model, desired.prices)).distinct()
        of_tenants = select(tenants.c.name).where(
            mine, tenants.c.archived_at.is_(None), ~_among(tenants.c.name, named)
        )
        others = []
        for kind, query in (("plan", of_plans), ("price", of_prices), ("tenant", of_tenants)):
            names = await connection.scalars(query.order_by(text("1")).limit(_OTHERS))
            others += [f"{kind} {name}" for name in names]
        wanted = {(one.name, key.name) for one in desired.tenants for key in one.keys}
        ids = [tenant.id for tenant in found.values()]
        query = select(tenants.c.name, keys.c.name.label("key"), keys.c.kid)
        query = query.join_from(keys, tenants, keys.c.tenant_id == tenants.c.id)
        query = query.where(*_are_live()).order_by(keys.c.created_at).limit(_OTHERS)
        for name, key, kid in await self._named(query, keys.c.tenant_id, ids, tuple):
            if (name, key) not in wanted:
                others.append(f"key {name}/{key} ({kid})")
        return others

    async def _named(
        self,
        query: Select[*tuple[Any, ...]],
        column: ColumnElement[Any],
        names: Sequence[Any],
        read: Callable[[Any], T],  # a row
    ) -> list[T]:
        rows: list[T] = []
        for chunk in in_chunks(names):
            rows += map(read, await self._connection.execute(query.where(column.in_(chunk))))
        return rows


async def _lock(connection: AsyncConnection, holders: Sequence[QuotaHolder]) -> None:
    """Be the only one who changes limits of scopes, the first who does among them."""
    empty = upsert(quotas).on_conflict_do_nothing()
    rows = [quota_place(one, is_override=False) | {"version": 0} for one in holders]
    await connection.execute(empty, rows)
    named = [(one.scope.kind.value, one.scope.id) for one in holders]
    await connection.execute(
        select(quotas.c.version)
        .where(tuple_(quotas.c.scope_kind, quotas.c.scope_id).in_(named), ~quotas.c.is_override)
        .order_by(quotas.c.scope_kind, quotas.c.scope_id)
        .with_for_update()
    )


def _are_live() -> tuple[ColumnElement[bool], ...]:
    lives = or_(keys.c.expires_at.is_(None), keys.c.expires_at > func.now())
    return keys.c.revoked_at.is_(None), lives


def _among(column: ColumnElement[str], names: Iterable[str]) -> ColumnElement[bool]:
    return column == any_(literal(list(names), ARRAY(Text)))
