"""Tenants: made, changed, listed and found by name within the organisation.

A change of a tenant's weight, plan, promises or ceilings holds for its next request: at once in the
process that made it, within a second in the others (the epoch, see `auth.upkeep`). A weight reaches
the requests that wait in this process too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from math import ceil
from typing import Any, Final, Protocol
from uuid import UUID

from gateway.domain import (
    Ceilings,
    Organisation,
    Tenant,
    TenantChoices,
    TenantFilter,
    TenantSlo,
    is_name,
)
from gateway.domain.admin import Actor
from gateway.domain.page import Page, PageRequest
from gateway.domain.tenant_archive import is_past_name
from gateway.errors import InvalidRequest, NotFound
from gateway.ports import AuthEpoch, OrganisationStore, TenantStore
from gateway.services.admin.ceilings import checked_ceilings
from gateway.services.auth import Authenticator

# Shares are divided by weights: bounds keep the quotients exact enough to be fair.
WEIGHT_MIN, WEIGHT_MAX = 1e-3, 1e6
# No machine answers sooner: a promise below that is a slip of the unit.
_SLO_MIN_MS, _SLO_MAX_MS = 1.0, 86_400_000.0
# Of plans and orgs to choose from: who has more names one in the address.
_MAX_CHOICES: Final = 100
ALL_TENANTS: Final = TenantFilter()


class HoldsTenants(Protocol):
    """Hold requests of tenants that wait or run."""

    def set_tenant(self, tenant: Tenant) -> None:
        """Learn what a tenant is now."""
        ...

    def least_pace_ms(self) -> float:
        """Say the shortest time between tokens to promise a tenant; 0 where nothing is known."""
        ...


class TenantService:
    """Make, change and find tenants for an admin; who may call this is decided above."""

    def __init__(
        self,
        tenants: TenantStore,
        organisations: OrganisationStore,
        authenticator: Authenticator,
        epoch: AuthEpoch,
        running: HoldsTenants,
    ) -> None:
        self._tenants = tenants
        self._organisations = organisations
        self._authenticator = authenticator
        self._epoch = epoch
        self._running = running

    async def create(
        self,
        actor: Actor,
        name: str,
        *,
        weight: float = 1.0,
        slo: TenantSlo | None = None,
        plan: str | None = None,
        ceilings: Mapping[str, object] | None = None,
        org: str | None = None,
    ) -> Tenant:
        """Make a tenant. `weight` is its share beside the others', `ceilings` as `Ceilings` has it.

        Raises: `InvalidRequest`: name, weight, a promise or a ceiling, also a promise that would
        cost others too much; `Conflict`: the name is taken; `NotFound`: no such plan or org.
        """
        require_name(name, param="name")
        slo = slo or TenantSlo()
        _check({"weight": weight, **asdict(slo), "plan": plan, "org": org})
        require_pace(asdict(slo), self._running.least_pace_ms)
        bounds = Ceilings(**checked_ceilings(ceilings or {}))
        organisation = await self.organisation()
        return await self._tenants.add(actor, organisation.id, name, weight, slo, plan, bounds, org)

    async def update(
        self,
        actor: Actor,
        name: str,
        changes: Mapping[str, object],
        *,
        version: int | None = None,
    ) -> Tenant:
        """Set `weight`, `plan`, `org`, promises (`ttft_ms` …), `trace_prompts` and ceilings.

        None takes back all but the weight, the tier and a yes. Raises: `InvalidRequest`: a value
        out of its bounds, or a promise that would cost others too much; `NotFound`: no such tenant,
        plan or org; `VersionConflict`: `version` is given, and not the present one.
        """
        changes = checked_tenant(changes)
        require_pace(changes, self._running.least_pace_ms)
        if not changes and version is None:
            return await self.get(name)
        tenant = None
        if is_name(name):
            organisation = await self.organisation()
            tenant = await self._tenants.update(
                actor, organisation.id, name, changes, version=version
            )
        if tenant is None:
            raise no_tenant()
        self._authenticator.forget_tenant(tenant.id)
        self._running.set_tenant(tenant)
        await self._epoch.advance(str(tenant.id))
        return tenant

    async def list(self) -> Sequence[Tenant]:
        """Return all tenants by name."""
        return await self._tenants.list((await self.organisation()).id)

    async def named(self, ids: Collection[UUID]) -> Mapping[UUID, Tenant]:
        """Return the tenants of these ids, as far as there are any."""
        found = await self._tenants.named((await self.organisation()).id, ids) if ids else ()
        return {tenant.id: tenant for tenant in found}

    async def page(
        self,
        request: PageRequest,
        *,
        chosen: TenantFilter = ALL_TENANTS,
        within: UUID | None = None,
    ) -> Page[Tenant]:
        """Return tenants by name, or `within` alone. Raises: `InvalidRequest`: the cursor."""
        return await self._tenants.page((await self.organisation()).id, within, request, chosen)

    async def choices(self) -> TenantChoices:
        """Name plans and orgs for a form to choose from."""
        return await self._tenants.choices((await self.organisation()).id, _MAX_CHOICES)

    async def get(self, name: str, *, within: UUID | None = None) -> Tenant:
        """Return the tenant of that name. Raises: `NotFound`: there is none, or not `within`."""
        tenant = None
        if is_name(name):
            tenant = await self._tenants.by_name((await self.organisation()).id, name)
        if tenant is None or within not in (None, tenant.id):
            raise no_tenant()
        return tenant

    async def id_of(self, name: str, *, within: UUID | None = None) -> UUID:
        """Return whose the records of that name are; archived tenants have records too.

        Raises: `NotFound`.
        """
        tenant = None
        if is_past_name(name):
            tenant = await self._tenants.by_name((await self.organisation()).id, name)
        if tenant is None or within not in (None, tenant.id):
            raise no_tenant()
        return tenant.id

    async def organisation(self) -> Organisation:
        """Return the organisation that tenants are made in."""
        return await self._organisations.default()


def require_name(name: str, *, param: str) -> None:
    """Check a name of a tenant or key. Raises: `InvalidRequest` with `param`."""
    if not is_name(name):
        raise InvalidRequest(
            f"'{param}' must be 1 to 63 characters of a-z, 0-9, '-', '_' and '.', "
            "with a letter or digit first.",
            param=param,
        )


def require_weight(weight: object) -> None:
    """Check a weight of a tenant or an org. Raises: `InvalidRequest`."""
    if not (isinstance(weight, int | float) and WEIGHT_MIN <= weight <= WEIGHT_MAX):
        raise InvalidRequest(
            f"'weight' must be between {WEIGHT_MIN:g} and {WEIGHT_MAX:g}.", param="weight"
        )


def checked_tenant(changes: Mapping[str, object]) -> dict[str, Any]:  # what `Tenant` takes
    """Return changes of a tenant as it keeps them.

    Raises: `InvalidRequest`: a value out of its bounds; `NotFound`: what cannot be the name of a
    plan or an org.
    """
    ceilings = checked_ceilings(changes)
    _check({name: value for name, value in changes.items() if name not in ceilings})
    return {**changes, **ceilings}


def require_pace(promises: Mapping[str, object], least_pace_ms: Callable[[], float]) -> None:
    """Check that promises which are about to be set cost others no more than they may.

    Raises: `InvalidRequest` with what is feasible.
    """
    paces = {param: promises.get(param) for param in ("tpot_ms", "max_gap_ms")}
    set_ms = {param: ms for param, ms in paces.items() if isinstance(ms, int | float)}
    if not set_ms:
        return
    least_ms = least_pace_ms()
    for param, ms in set_ms.items():
        if ms < least_ms:
            raise InvalidRequest(
                f"'{param}' of {ms:g} ms would cost other tenants more of the throughput than "
                f"'fairness.max_throughput_loss' allows: {ceil(least_ms)} ms is feasible.",
                param=param,
            )


def no_tenant() -> NotFound:
    """Say that there is no such tenant, in the words used for another's."""
    return NotFound("There is no tenant of that name.", param="tenant")


def _check(values: Mapping[str, object]) -> None:
    """Refuse values outside their bounds by name; NaN is outside of all."""
    for param, value in values.items():
        if param in ("plan", "org"):
            if value is not None and not is_name(str(value)):
                raise NotFound(f"There is no {param} of that name.", param=param)
            continue
        if param == "trace_prompts":
            assert isinstance(value, bool), "its type was checked"
            continue
        assert value is None or isinstance(value, int | float), "all but names are numbers"
        if param == "weight":
            require_weight(value)
        elif value is not None and not _SLO_MIN_MS <= value <= _SLO_MAX_MS:
            raise InvalidRequest(
                f"'{param}' must be at least 1 ms and at most a day, or null.", param=param
            )
