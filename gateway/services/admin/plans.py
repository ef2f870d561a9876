"""Plans: limits by name. A change holds for the next request of every tenant on it."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.domain import is_name
from gateway.domain.admin import Actor
from gateway.domain.page import Page, PageRequest
from gateway.domain.plan import Plan
from gateway.domain.quota import Quota, ScopeKind
from gateway.errors import NotFound
from gateway.ports import AuthEpoch, OrganisationStore, PlanStore
from gateway.services.admin.quota_limits import checked_limits
from gateway.services.admin.tenants import require_name
from gateway.services.auth import Authenticator


class PlanService:
    """Make, change and remove plans for an admin; who may call this is decided above."""

    def __init__(
        self,
        plans: PlanStore,
        organisations: OrganisationStore,
        authenticator: Authenticator,
        epoch: AuthEpoch,
    ) -> None:
        self._plans = plans
        self._organisations = organisations
        self._authenticator = authenticator
        self._epoch = epoch

    async def create(self, actor: Actor, name: str, limits: Mapping[str, object]) -> Plan:
        """Make a plan of limits by the names that `Quota` gives them.

        Raises: `InvalidRequest`: the name or a limit; `Conflict`: the name is taken.
        """
        require_name(name, param="name")
        quota = Quota(**checked_limits(limits, ScopeKind.PLAN))
        organisation = await self._organisations.default()
        return await self._plans.add(actor, organisation.id, name, quota)

    async def page(self, request: PageRequest) -> Page[Plan]:
        """Return plans by name. Raises: `InvalidRequest`: the cursor."""
        return await self._plans.page((await self._organisations.default()).id, request)

    async def get(self, name: str) -> Plan:
        """Return the plan of that name. Raises: `NotFound`."""
        plan = None
        if is_name(name):
            plan = await self._plans.by_name((await self._organisations.default()).id, name)
        return _found(plan)

    async def update(
        self,
        actor: Actor,
        name: str,
        limits: Mapping[str, object],
        *,
        version: int | None = None,
    ) -> Plan:
        """Set the limits that are named; None takes one back.

        Raises: `InvalidRequest`: a limit; `NotFound`; `VersionConflict`.
        """
        changes = checked_limits(limits, ScopeKind.PLAN)
        plan = None
        if is_name(name):
            organisation = await self._organisations.default()
            plan = await self._plans.update(actor, organisation.id, name, changes, version=version)
        plan = _found(plan)
        self._authenticator.forget_all()
        await self._epoch.advance()
        return plan

    async def remove(self, actor: Actor, name: str, *, version: int | None = None) -> Plan:
        """Remove a plan that no tenant is on.

        Raises: `NotFound`; `Conflict`: tenants are on it; `VersionConflict`.
        """
        plan = None
        if is_name(name):
            organisation = await self._organisations.default()
            plan = await self._plans.remove(actor, organisation.id, name, version=version)
        return _found(plan)


def _found(plan: Plan | None) -> Plan:
    if plan is None:
        raise NotFound("There is no plan of that name.", param="plan")
    return plan
