"""Tenants: made, changed, listed and found by name within the organisation.

A change of a tenant's weight or promises holds for its next request: at once in the process that
made it, within a second in the others (the epoch, see `auth_upkeep`). A weight reaches the
requests that wait in this process too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final, Protocol

from gateway.domain import Organisation, Tenant, TenantSlo, is_name
from gateway.errors import InvalidRequest, NotFound
from gateway.ports import AuthEpoch, OrganisationStore, TenantStore
from gateway.services.auth import Authenticator

# Shares are divided by weights: bounds keep the quotients exact enough to be fair.
WEIGHT_MIN, WEIGHT_MAX = 1e-3, 1e6
_SLO_MAX_MS: Final = 86_400_000.0


class HoldsTenants(Protocol):
    """Hold requests of tenants that wait or run."""

    def set_tenant(self, tenant: Tenant) -> None:
        """Learn what a tenant is now."""
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
        self, name: str, *, weight: float = 1.0, slo: TenantSlo | None = None
    ) -> Tenant:
        """Make a tenant. `weight` is its share beside the others'.

        Raises: `InvalidRequest`: name, weight or a promise; `Conflict`: the name is taken.
        """
        require_name(name, param="name")
        slo = slo or TenantSlo()
        _check({"weight": weight, **asdict(slo)})
        organisation = await self.organisation()
        return await self._tenants.add(organisation.id, name, weight, slo)

    async def update(self, name: str, changes: Mapping[str, float | None]) -> Tenant:
        """Set `weight`, `ttft_ms`, `tpot_ms`, `max_gap_ms`; a promise of None is taken back.

        Raises: `InvalidRequest`: a value out of its bounds; `NotFound`: no such tenant.
        """
        _check(changes)
        if not changes:
            return await self.get(name)
        tenant = None
        if is_name(name):
            organisation = await self.organisation()
            tenant = await self._tenants.update(organisation.id, name, changes)
        if tenant is None:
            raise _no_tenant()
        self._authenticator.forget_tenant(tenant.id)
        self._running.set_tenant(tenant)
        await self._epoch.advance()
        return tenant

    async def list(self) -> Sequence[Tenant]:
        """Return all tenants by name."""
        return await self._tenants.list((await self.organisation()).id)

    async def get(self, name: str) -> Tenant:
        """Return the tenant of that name. Raises: `NotFound`."""
        tenant = None
        if is_name(name):
            tenant = await self._tenants.by_name((await self.organisation()).id, name)
        if tenant is None:
            raise _no_tenant()
        return tenant

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


def _check(values: Mapping[str, float | None]) -> None:
    """Refuse numbers outside their bounds by name; NaN is outside of all."""
    for param, value in values.items():
        if param == "weight":
            if value is None or not WEIGHT_MIN <= value <= WEIGHT_MAX:
                raise InvalidRequest(
                    f"'weight' must be between {WEIGHT_MIN:g} and {WEIGHT_MAX:g}.", param=param
                )
        elif value is not None and not 0 < value <= _SLO_MAX_MS:
            raise InvalidRequest(
                f"'{param}' must be above 0 ms and at most a day, or null.", param=param
            )


def _no_tenant() -> NotFound:
    return NotFound("There is no tenant of that name.", param="tenant")
