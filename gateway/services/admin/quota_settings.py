"""Limits of every scope: shown, set, and laid over for a while.

A change holds for the next request here and within a second in other processes; for requests that
run it holds once its windows are loaded, which is tried at once and done by the next request where
that fails. Which counters a limit is counted in is known to `gateway.services.quotas` alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from gateway.domain.admin import Actor
from gateway.domain.quota import PLATFORM, Quota, Scope, ScopeKind, ScopeQuota
from gateway.domain.quota_settings import QuotaHolder, QuotaOverride, QuotaState
from gateway.errors import InvalidRequest, NotFound
from gateway.ports import AuthEpoch, Clock, QuotaSettings
from gateway.services.admin.ceilings import check_limits
from gateway.services.admin.keys import KeyService
from gateway.services.admin.plans import PlanService
from gateway.services.admin.quota_limits import checked_limits
from gateway.services.admin.tenants import TenantService
from gateway.services.auth import Authenticator

OVERRIDE_S_MAX: Final = 366 * 86_400
_REASON_CHARS_MAX: Final = 500
# What the platform and the organisation are called: there is one of each.
THE_ONE: Final = "-"


class QuotaSettingsService:
    """Show and set limits for an admin; who may call this is decided above."""

    def __init__(
        self,
        settings: QuotaSettings,
        tenants: TenantService,
        keys: KeyService,
        plans: PlanService,
        authenticator: Authenticator,
        epoch: AuthEpoch,
        *,
        load: Callable[[ScopeQuota, UUID | None], Awaitable[None]],
        clock: Clock = time,
    ) -> None:
        """Begin; `load` has what runs counted in the limits of a scope, and never fails."""
        self._settings = settings
        self._tenants = tenants
        self._keys = keys
        self._plans = plans
        self._authenticator = authenticator
        self._epoch = epoch
        self._load = load
        self._clock = clock

    async def holder(
        self, kind: ScopeKind, named: str, *, within: UUID | None = None
    ) -> QuotaHolder:
        """Find a scope: a tenant or plan by name, a key by id or kid, the others by `-`.

        Raises: `NotFound`: there is none of that name, or not `within` that tenant.
        """
        organisation = await self._tenants.organisation()
        if kind is ScopeKind.KEY:
            key = await self._keys.get(named, within=within)
            scope = Scope(kind, key.id)
            return QuotaHolder(scope, key.kid, organisation.id, key.tenant_id, tenant=key.tenant)
        if kind is ScopeKind.TENANT:
            tenant = await self._tenants.get(named, within=within)
            scope = Scope(kind, tenant.id)
            return QuotaHolder(scope, tenant.name, organisation.id, tenant.id, tenant.plan_id)
        assert within is None, "the rest is nobody's own"
        if kind is ScopeKind.PLAN:
            plan = await self._plans.get(named)
            return QuotaHolder(Scope(kind, plan.id), plan.name, organisation.id)
        if named != THE_ONE:
            raise NotFound(f"There is one {kind.value}, and it is named '{THE_ONE}'.", param="id")
        if kind is ScopeKind.PLATFORM:
            return QuotaHolder(PLATFORM, "platform", organisation.id)
        return QuotaHolder(Scope(kind, organisation.id), organisation.name, organisation.id)

    async def get(self, holder: QuotaHolder) -> QuotaState:
        """Return what a scope has set and what holds for it now."""
        return await self._settings.get(holder)

    async def put(
        self,
        actor: Actor,
        holder: QuotaHolder,
        limits: Mapping[str, object],
        *,
        version: int | None = None,
    ) -> QuotaState:
        """Replace a scope's own limits: what is not named is no limit of its own any more.

        Raises: `InvalidRequest`: a limit; `AboveCeiling`; `SetByOperator`; `VersionConflict`.
        """
        quota = Quota(**checked_limits(limits, holder.scope.kind))
        await self._check_ceiling(actor, holder, quota, limits)
        state = await self._settings.put(actor, holder, quota, version=version)
        await self._changed(state)
        return state

    async def patch(
        self,
        actor: Actor,
        holder: QuotaHolder,
        limits: Mapping[str, object],
        *,
        version: int | None = None,
    ) -> QuotaState:
        """Set the limits that are named; None takes one back.

        Raises: `InvalidRequest`: a limit; `AboveCeiling`; `SetByOperator`; `VersionConflict`.
        """
        changes = checked_limits(limits, holder.scope.kind)
        if actor.is_of_tenant:
            quota = replace((await self._settings.get(holder)).quota, **changes)
            await self._check_ceiling(actor, holder, quota, limits)
        state = await self._settings.patch(actor, holder, changes, version=version)
        await self._changed(state)
        return state

    async def override(
        self,
        actor: Actor,
        holder: QuotaHolder,
        limits: Mapping[str, object],
        *,
        ends_in_s: float,
        reason: str | None = None,
        version: int | None = None,
    ) -> QuotaState:
        """Lay limits over a scope's own for `ends_in_s` seconds, in place of what lay there.

        Raises: `InvalidRequest`: a limit, the time or the reason; `AboveCeiling`; `SetByOperator`;
        `VersionConflict`.
        """
        assert holder.scope.kind is not ScopeKind.PLAN, "an override lies over its tenants"
        if not math.isfinite(ends_in_s) or not 0 < ends_in_s <= OVERRIDE_S_MAX:
            raise InvalidRequest(
                "'ends_in_s' must be above 0 seconds and at most 366 days.", param="ends_in_s"
            )
        if reason is not None and not _is_line(reason):
            raise InvalidRequest(
                f"'reason' must be one line of at most {_REASON_CHARS_MAX} characters.",
                param="reason",
            )
        ends_at = datetime.fromtimestamp(self._clock.time() + ends_in_s, UTC)
        quota = Quota(**checked_limits(limits, holder.scope.kind))
        await self._check_ceiling(actor, holder, quota, limits)
        override = QuotaOverride(quota, ends_at, reason)
        state = await self._settings.override(actor, holder, override, version=version)
        await self._changed(state)
        return state

    async def clear(
        self, actor: Actor, holder: QuotaHolder, *, version: int | None = None
    ) -> QuotaState:
        """Take the override away, if there is one. Raises: `SetByOperator`, `VersionConflict`."""
        state = await self._settings.clear(actor, holder, version=version)
        await self._changed(state)
        return state

    async def _check_ceiling(
        self, actor: Actor, holder: QuotaHolder, quota: Quota, named: Mapping[str, object]
    ) -> None:
        """Tell a tenant's owner at once what would not count; operators may prepare for later."""
        if not actor.is_of_tenant or holder.tenant is None:
            return
        tenant = await self.holder(ScopeKind.TENANT, holder.tenant, within=holder.tenant_id)
        check_limits((await self._settings.get(tenant)).effective.quota, quota, named)

    async def _changed(self, state: QuotaState) -> None:
        holder = state.holder
        changed = None
        if holder.scope.kind is ScopeKind.KEY:
            changed = holder.name
        elif holder.scope.kind is ScopeKind.TENANT:
            changed = str(holder.scope.id)
        self._authenticator.forget_changed(None if changed is None else {changed})
        await self._epoch.advance(changed)
        if holder.scope.kind is not ScopeKind.PLAN:
            await self._load(state.effective, state.holder.tenant_id)


def _is_line(text: str) -> bool:
    return 1 <= len(text) <= _REASON_CHARS_MAX and text.isprintable()
