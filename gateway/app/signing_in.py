"""Putting together what people sign in with, for the server and its tests."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from uuid import UUID

from gateway.domain.admin import Actor
from gateway.services.auth import Authenticator
from gateway.services.sign_in import Attempts, FailedLogins, Passwords, Sessions, SignIn
from gateway.store import Store

_SERVER = Actor("server", "system")


@dataclass(frozen=True, slots=True)
class SigningIn:
    """Hold the services of signing in."""

    sign_in: SignIn
    sessions: Sessions
    failed: FailedLogins
    passwords: Passwords

    async def run(self, stack: AsyncExitStack) -> None:
        """Do what they do beside requests until `stack` is left."""
        stack.callback(self.passwords.close)
        await stack.enter_async_context(self.failed.running())
        await stack.enter_async_context(self.sessions.running())

    async def first_link(self) -> str | None:
        """Make the link of the banner; None where an owner can sign in."""
        return await self.sign_in.first_link(_SERVER)


def signing_in(
    store: Store, keys: Authenticator, organisation_id: UUID, passwords: Passwords | None = None
) -> SigningIn:
    """Build the services over an open store; `keys` tells whose a key is."""
    sessions = Sessions(store.sessions, store.secrets, organisation_id)
    failed = FailedLogins(store.audit, organisation_id)
    passwords = passwords or Passwords()
    sign_in = SignIn(
        store.users,
        store.sessions,
        store.secrets,
        organisation_id,
        sessions=sessions,
        passwords=passwords,
        attempts=Attempts(store.login_attempts),
        failed=failed,
        keys=keys,
    )
    return SigningIn(sign_in, sessions, failed, passwords)
