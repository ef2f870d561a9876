"""Archiving a tenant: it is gone for whoever uses the server, and its ledger stays.

Its keys and admin tokens are revoked in the transaction that archives it. What it has running ends
as any request of a revoked key does: within a second, in every process, billed for what it got.
"""

from __future__ import annotations

from gateway.domain import is_name
from gateway.domain.admin import Actor
from gateway.domain.tenant_archive import ArchivedTenant
from gateway.ports import AuthEpoch, OrganisationStore, TenantArchiveStore
from gateway.services.admin.tenants import no_tenant
from gateway.services.auth import AdminAuthenticator, Authenticator, tell_ended


class TenantArchive:
    """Archive tenants for an admin; who may call this is decided above."""

    def __init__(
        self,
        archive: TenantArchiveStore,
        organisations: OrganisationStore,
        authenticator: Authenticator,
        epoch: AuthEpoch,
        admin_authenticator: AdminAuthenticator,
        admin_epoch: AuthEpoch,
    ) -> None:
        self._archive = archive
        self._organisations = organisations
        self._authenticator = authenticator
        self._epoch = epoch
        self._admin_authenticator = admin_authenticator
        self._admin_epoch = admin_epoch

    async def archive(
        self, actor: Actor, name: str, *, version: int | None = None
    ) -> ArchivedTenant:
        """Archive the tenant of that name, for good.

        Raises: `NotFound`; `VersionConflict`: `version` is given, and not the present one.
        """
        done = None
        if is_name(name):
            organisation = await self._organisations.default()
            done = await self._archive.archive(actor, organisation.id, name, version=version)
        if done is None:
            raise no_tenant()
        self._authenticator.forget_tenant(done.tenant.id)
        for kid in done.ended_tokens:
            self._admin_authenticator.forget(kid)
        await tell_ended(self._epoch, str(done.tenant.id))
        if done.ended_tokens:
            await self._admin_epoch.advance()
        return done
