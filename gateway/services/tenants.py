"""Tenants: made, listed and found by name within the organisation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.domain import Organisation, Tenant, is_name
from gateway.errors import InvalidRequest, NotFound
from gateway.ports import OrganisationStore, TenantStore


class TenantService:
    """Make and find tenants for an admin; who may call this is decided above."""

    def __init__(self, tenants: TenantStore, organisations: OrganisationStore) -> None:
        self._tenants = tenants
        self._organisations = organisations

    async def create(self, name: str, *, weight: float = 1.0) -> Tenant:
        """Make a tenant. `weight` is its share beside the others', finite and above 0.

        Raises: `InvalidRequest`: name or weight; `Conflict`: the name is taken.
        """
        require_name(name, param="name")
        if not math.isfinite(weight) or weight <= 0:
            raise InvalidRequest("'weight' must be a finite number above 0.", param="weight")
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
