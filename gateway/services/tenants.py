"""Tenants: made, listed and found by name within the organisation."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.domain import Organisation, Tenant, is_name
from gateway.errors import InvalidRequest, NotFound
from gateway.ports import OrganisationStore, TenantStore

# Shares are divided by weights: bounds keep the quotients exact enough to be fair.
WEIGHT_MIN, WEIGHT_MAX = 1e-3, 1e6


class TenantService:
    """Make and find tenants for an admin; who may call this is decided above."""

    def __init__(self, tenants: TenantStore, organisations: OrganisationStore) -> None:
        self._tenants = tenants
        self._organisations = organisations

    async def create(self, name: str, *, weight: float = 1.0) -> Tenant:
        """Make a tenant. `weight` is its share beside the others'.

        Raises: `InvalidRequest`: name or weight; `Conflict`: the name is taken.
        """
        require_name(name, param="name")
        if not WEIGHT_MIN <= weight <= WEIGHT_MAX:  # NaN fails this too
            raise InvalidRequest(
                f"'weight' must be between {WEIGHT_MIN:g} and {WEIGHT_MAX:g}.", param="weight"
            )
        organisation = await self.organisation()
        return await self._tenants.add(organisation.id, name, weight)

    async def list(self) -> Sequence[Tenant]:
        """Return all tenants by name."""
        return await self._tenants.list((await self.organisation()).id)

    async def get(self, name: str) -> Tenant:
        """Return the tenant of that name. Raises: `NotFound`."""
        tenant = None
        if is_name(name):
            tenant = await self._tenants.by_name((await self.organisation()).id, name)
        if tenant is None:
            raise NotFound("There is no tenant of that name.", param="tenant")
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
