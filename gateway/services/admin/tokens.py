"""Admin tokens: issued, listed, revoked. A token is shown once and never stored.

Nobody grants more than they may do themselves: an admin's role must hold every right of the role
that it gives, and who is bound to a tenant gives tokens of that tenant alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from gateway.credentials import ADMIN_PREFIX, Secrets, is_kid
from gateway.domain.admin import (
    Actor,
    Admin,
    AdminRole,
    AdminToken,
    AdminTokenDraft,
    IssuedAdminToken,
)
from gateway.domain.page import Page, PageRequest
from gateway.errors import InvalidRequest, NotFound, PermissionDenied
from gateway.ports import AdminTokenStore, AuthEpoch, Clock
from gateway.services.admin.keys import expiry, uuid_of
from gateway.services.admin.tenants import TenantService, require_name
from gateway.services.auth import AdminAuthenticator

_GRANTS: Final[Mapping[AdminRole, frozenset[AdminRole]]] = {
    AdminRole.OWNER: frozenset(AdminRole),
    AdminRole.OPERATOR: frozenset(AdminRole) - {AdminRole.OWNER},
    AdminRole.VIEWER: frozenset({AdminRole.VIEWER, AdminRole.TENANT_VIEWER}),
    AdminRole.TENANT_OWNER: frozenset({AdminRole.TENANT_OWNER, AdminRole.TENANT_VIEWER}),
    AdminRole.TENANT_VIEWER: frozenset({AdminRole.TENANT_VIEWER}),
}


def may_give(giver: AdminRole, role: AdminRole) -> bool:
    """Tell whether who has one role may give another."""
    return role in _GRANTS[giver]


class AdminTokenService:
    """Issue and end admin tokens; which roles may try is decided above."""

    def __init__(
        self,
        tokens: AdminTokenStore,
        tenants: TenantService,
        secrets: Secrets,
        authenticator: AdminAuthenticator,
        epoch: AuthEpoch,
        *,
        clock: Clock = time,
    ) -> None:
        self._tokens = tokens
        self._tenants = tenants
        self._secrets = secrets
        self._authenticator = authenticator
        self._epoch = epoch
        self._clock = clock

    async def create(
        self,
        admin: Admin,
        actor: Actor,
        *,
        name: str,
        role: AdminRole,
        tenant: str | None = None,
        expires_in_s: float | None = None,
    ) -> IssuedAdminToken:
        """Issue a token; `tenant` names whose it is, for the roles of a tenant and only for them.

        Raises: `InvalidRequest`; `NotFound`: no such tenant; `PermissionDenied`: `admin` may not
        give that role.
        """
        require_name(name, param="name")
        if not may_give(admin.role, role):
            raise PermissionDenied(f"A token of role {admin.role.value} may not give {role.value}.")
        if role.is_of_tenant != (tenant is not None):
            raise InvalidRequest(
                "'tenant' goes with the roles tenant-owner and tenant-viewer, which need it.",
                param="tenant",
            )
        expires_at = expiry(expires_in_s, self._clock)
        tenant_id = None
        if tenant is not None:
            tenant_id = (await self._tenants.get(tenant, within=admin.tenant_id)).id
        token = self._secrets.issue(ADMIN_PREFIX)
        draft = AdminTokenDraft(
            kid=token.kid,
            pepper_id=self._secrets.pepper_id,
            mac=self._secrets.admin_mac(token),
            name=name,
            role=role,
            tenant_id=tenant_id,
            expires_at=expires_at,
            is_tagged=self._secrets.is_tagged(token),
        )
        made = await self._tokens.add(actor, admin.organisation_id, draft)
        return IssuedAdminToken(made, token.text)

    async def page(self, request: PageRequest) -> Page[AdminToken]:
        """Return all tokens, oldest first. Raises: `InvalidRequest`: the cursor."""
        return await self._tokens.page(request)

    async def revoke(self, admin: Admin, actor: Actor, token_id: str) -> AdminToken:
        """End a token, named by its id or kid, at once.

        Every process knows by the epoch before this returns. Raises: `NotFound`.
        """
        named = token_id if is_kid(token_id) else uuid_of(token_id)
        token = None
        if named is not None:
            token = await self._tokens.revoke(actor, admin.organisation_id, named)
        if token is None:
            raise NotFound("There is no admin token of that id.", param="token_id")
        self._authenticator.forget(token.kid)
        await self._epoch.advance()
        return token
