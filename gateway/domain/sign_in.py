"""People who sign in to the pages, and the sessions that this begins."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from gateway.domain.admin import Actor, Admin, AdminRole

# How a person's name stands in the audit log: no token and no key is called so.
ACTOR_PREFIX: Final = "user:"

_NAME = re.compile(r"[a-z0-9][a-z0-9._%+@-]{0,126}", re.ASCII)


@dataclass(frozen=True, slots=True)
class User:
    """Describe a person who may sign in; the hash of the password is not part of it."""

    id: UUID
    name: str
    role: AdminRole
    has_password: bool
    version: int
    created_at: datetime
    tenant_id: UUID | None = None
    tenant: str | None = None
    subject: str | None = None
    suspended_at: datetime | None = None
    last_login_at: datetime | None = None

    @property
    def may_prove(self) -> bool:
        """Tell whether there is a way to prove to be this user."""
        return self.has_password or self.subject is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDraft:
    """Say who a new user is to be; `subject` is how another issuer knows them, unambiguously."""

    name: str
    role: AdminRole
    tenant_id: UUID | None = None
    subject: str | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Say whom another issuer vouches for: `subject` is theirs there, for good, `name` a proposal.

    `role` is what the issuer's word gives who was not invited; None: nothing.
    """

    issuer: str
    subject: str
    name: str = ""
    role: AdminRole | None = None

    @property
    def text(self) -> str:
        """Write both as the store keeps them; issuers have no spaces."""
        return subject_text(self.issuer, self.subject)


@dataclass(frozen=True, slots=True)
class UserRecord:
    """Pair a user with what proves the password; None: none was set yet."""

    user: User
    password_hash: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Caller:
    """Say where a sign-in comes from: the client's address, its browser, the request's id."""

    address: str | None = None
    agent: str = ""
    request_id: str | None = None

    def actor(self, name: str, role: AdminRole) -> Actor:
        """Return who does something from there, for the audit log."""
        return Actor(name, role.value, self.address, self.request_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDraft:
    """Say whose a new session is and how long it lasts; `mac` is what the store keeps of its id.

    A user's ends with the user's rights, a key's with the key and the secret it was begun with. One
    that an issuer vouched for begins as long as `subject` is the user's.
    """

    mac: bytes = field(repr=False)
    life_s: float
    caller: Caller
    user_id: UUID | None = None
    subject: str | None = None
    key_id: UUID | None = None
    key_mac: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Session:
    """Describe a session that lives; `admin` is who speaks through it, as of now."""

    id: UUID
    admin: Admin
    created_at: datetime
    seen_at: datetime
    expires_at: datetime
    address: str | None
    agent: str
    user_id: UUID | None = None
    key_id: UUID | None = None

    @property
    def title(self) -> str:
        """Name who is signed in, as people read it."""
        return self.admin.name.removeprefix(ACTOR_PREFIX)


def subject_text(issuer: str, subject: str) -> str:
    """Write whom an issuer knows as `subject`: those of two issuers are never the same."""
    return f"{issuer} {subject}"


def is_user_name(text: str) -> bool:
    """Tell whether `text` may name a user: as an account or an e-mail address is written, small."""
    return _NAME.fullmatch(text) is not None
