"""Putting together what people sign in with, for the server and its tests."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from dataclasses import dataclass
from uuid import UUID

from admin_ui.login.oidc import BACK as OIDC_BACK
from gateway.domain.admin import Actor, AdminRole
from gateway.services.auth import Authenticator
from gateway.services.sign_in import (
    Attempts,
    FailedLogins,
    Issuer,
    IssuerOptions,
    Passwords,
    Sessions,
    SignIn,
    Visits,
)
from gateway.settings import Settings
from gateway.store import Store

_SERVER = Actor("server", "system")


@dataclass(frozen=True, slots=True)
class SigningIn:
    """Hold the services of signing in."""

    sign_in: SignIn
    sessions: Sessions
    failed: FailedLogins
    passwords: Passwords
    visits: Visits | None = None

    async def run(self, stack: AsyncExitStack) -> None:
        """Do what they do beside requests until `stack` is left."""
        stack.callback(self.passwords.close)
        await stack.enter_async_context(self.failed.running())
        await stack.enter_async_context(self.sessions.running())

    async def first_link(self) -> str | None:
        """Make the link of the banner; None where an owner can sign in."""
        return await self.sign_in.first_link(_SERVER)


def signing_in(
    store: Store,
    keys: Authenticator,
    organisation_id: UUID,
    passwords: Passwords | None = None,
    *,
    issuer: Issuer | None = None,
    grace_s: float = math.inf,
) -> SigningIn:
    """Build the services over an open store; `keys` tells whose a key is.

    `issuer` is where else people may sign in. `grace_s`: for how long a page updates itself while
    the store is silent.
    """
    sessions = Sessions(store.sessions, store.secrets, organisation_id, grace_s=grace_s)
    failed = FailedLogins(store.audit, organisation_id)
    passwords = passwords or Passwords()
    attempts = Attempts(store.login_attempts)
    sign_in = SignIn(
        store.users,
        store.sessions,
        store.secrets,
        organisation_id,
        sessions=sessions,
        passwords=passwords,
        attempts=attempts,
        failed=failed,
        keys=keys,
        issuer=None if issuer is None else issuer.options.issuer,
    )
    visits = None if issuer is None else Visits(issuer, sign_in, attempts, store.secrets)
    return SigningIn(sign_in, sessions, failed, passwords, visits)


def issuer_of(settings: Settings) -> Issuer | None:
    """Return where else people may sign in. Raises: `StartupFailed`: Authlib is missing."""
    if settings.oidc_issuer is None:
        return None
    assert settings.oidc_client_id is not None, "settings check it"
    secret = settings.oidc_client_secret
    return Issuer(
        IssuerOptions(
            issuer=settings.oidc_issuer,
            client_id=settings.oidc_client_id,
            client_secret=None if secret is None else secret.get_secret_value(),
            redirect_url=f"{settings.admin_public_url}{OIDC_BACK}",
            scopes=settings.oidc_scopes,
            name=settings.oidc_name,
            role_claim=settings.oidc_role_claim,
            roles={
                value: AdminRole(role)
                for value, _, role in (pair.rpartition("=") for pair in settings.oidc_roles)
            },
        )
    )
