"""Orgs: owners of tenants, which share the machine's service as one.

Between orgs, and tenants that belong to none, service is shared by weight; what an org gets its
tenants share by theirs. A weight holds at once for what waits in the process that changed it, and
within a second for new requests in the others.
"""

from __future__ import annotations

from typing import Protocol

from gateway.domain import Org, is_name
from gateway.domain.admin import Actor
from gateway.domain.page import Page, PageRequest
from gateway.errors import NotFound
from gateway.ports import AuthEpoch, OrganisationStore, OrgStore
from gateway.services.admin.tenants import require_name, require_weight
from gateway.services.auth import Authenticator


class HoldsOrgs(Protocol):
    """Hold requests of tenants of orgs that wait or run."""

    def set_org(self, org: Org) -> None:
        """Learn what an org is now."""
        ...


class OrgService:
    """Make, change and remove orgs for an admin; who may call this is decided above."""

    def __init__(
        self,
        orgs: OrgStore,
        organisations: OrganisationStore,
        authenticator: Authenticator,
        epoch: AuthEpoch,
        running: HoldsOrgs,
    ) -> None:
        self._orgs = orgs
        self._organisations = organisations
        self._authenticator = authenticator
        self._epoch = epoch
        self._running = running

    async def create(self, actor: Actor, name: str, *, weight: float = 1.0) -> Org:
        """Make an org. Raises: `InvalidRequest`: name or weight; `Conflict`: the name is taken."""
        require_name(name, param="name")
        require_weight(weight)
        organisation = await self._organisations.default()
        return await self._orgs.add(actor, organisation.id, name, weight)

    async def page(self, request: PageRequest) -> Page[Org]:
        """Return orgs by name. Raises: `InvalidRequest`: the cursor."""
        return await self._orgs.page((await self._organisations.default()).id, request)

    async def get(self, name: str) -> Org:
        """Return the org of that name. Raises: `NotFound`."""
        org = None
        if is_name(name):
            org = await self._orgs.by_name((await self._organisations.default()).id, name)
        return _found(org)

    async def update(
        self, actor: Actor, name: str, weight: float | None, *, version: int | None = None
    ) -> Org:
        """Set its weight; None leaves it. Raises: `InvalidRequest`; `NotFound`;
        `VersionConflict`: `version` is given, and not the present one.
        """
        changes = {}
        if weight is not None:
            require_weight(weight)
            changes["weight"] = weight
        org = None
        if is_name(name):
            organisation = await self._organisations.default()
            org = await self._orgs.update(actor, organisation.id, name, changes, version=version)
        org = _found(org)
        self._authenticator.forget_all()
        self._running.set_org(org)
        await self._epoch.advance()
        return org

    async def remove(self, actor: Actor, name: str, *, version: int | None = None) -> Org:
        """Remove an org that no tenant belongs to.

        Raises: `NotFound`; `Conflict`: tenants belong to it; `VersionConflict`.
        """
        org = None
        if is_name(name):
            organisation = await self._organisations.default()
            org = await self._orgs.remove(actor, organisation.id, name, version=version)
        return _found(org)


def _found(org: Org | None) -> Org:
    if org is None:
        raise NotFound("There is no org of that name.", param="org")
    return org
