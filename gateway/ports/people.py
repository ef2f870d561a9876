"""Who administers, how they come in, and what they changed."""

from __future__ import annotations

from collections.abc import (
    Collection,
    Mapping,
    Sequence,
)
from typing import Protocol
from uuid import UUID

from gateway.domain.admin import (
    Actor,
    AdminToken,
    AdminTokenDraft,
    AdminTokenRecord,
    AuditEntry,
    AuditFilter,
    AuditHead,
    AuditRecord,
    AuditVerdict,
)
from gateway.domain.login_rate import Bucket
from gateway.domain.page import Page, PageRequest
from gateway.domain.sign_in import Caller, Session, SessionDraft, User, UserDraft, UserRecord


class AdminTokenStore(Protocol):
    async def find(self, kid: str) -> AdminTokenRecord | None: ...

    async def page(self, request: PageRequest) -> Page[AdminToken]:
        """Return all tokens, oldest first. Raises: `InvalidRequest`: the cursor."""
        ...

    async def add(
        self, actor: Actor, organisation_id: UUID, draft: AdminTokenDraft
    ) -> AdminToken: ...

    async def revoke(
        self, actor: Actor, organisation_id: UUID, token: UUID | str
    ) -> AdminToken | None:
        """Revoke by id or kid; one that is revoked already stays as it is. None: no such token."""
        ...


class UserStore(Protocol):
    """Hold who may sign in. What takes away a right of a user's ends the user's sessions too."""

    async def find(self, organisation_id: UUID, name: str) -> UserRecord | None: ...

    async def by_subject(self, organisation_id: UUID, subject: str) -> UserRecord | None: ...

    async def page(self, organisation_id: UUID, request: PageRequest) -> Page[User]:
        """Return users by name. Raises: `InvalidRequest`: the cursor."""
        ...

    async def add(self, actor: Actor, organisation_id: UUID, draft: UserDraft) -> User:
        """Insert a user. Raises: `Conflict`: the name is taken; `NotFound`: the tenant is gone."""
        ...

    async def update(
        self,
        actor: Actor,
        organisation_id: UUID,
        name: str,
        changes: Mapping[str, object],
        version: int | None = None,
    ) -> User | None:
        """Change `role` with `tenant_id`, or `is_suspended`; None: no such user.

        Raises: `VersionConflict`; `InvalidRequest`: no owner would be left who can sign in.
        """
        ...

    async def remove(self, actor: Actor, organisation_id: UUID, name: str) -> User | None:
        """Delete a user. Raises: `InvalidRequest`: the last owner who can sign in."""
        ...

    async def set_password(
        self, actor: Actor, organisation_id: UUID, name: str, password_hash: str, old_hash: str
    ) -> User | None:
        """Replace a hash by another; None: it is not `old_hash` any more."""
        ...

    async def has_owner(self, organisation_id: UUID) -> bool:
        """Tell whether an owner can sign in."""
        ...

    async def add_link(
        self, actor: Actor, organisation_id: UUID, mac: bytes, name: str | None, life_s: float
    ) -> User | None:
        """Add a link that sets a user's password once, in place of the one before.

        Without `name` it is for the first owner. None: no such user. Raises: `Conflict`: there is
        an owner.
        """
        ...

    async def link_is_for(self, mac: bytes) -> tuple[bool, str | None]:
        """Tell whether a link is good, and for whom; None: for the first owner."""
        ...

    async def follow_link(
        self,
        caller: Caller,
        organisation_id: UUID,
        mac: bytes,
        name: str | None,
        password_hash: str,
    ) -> UserRecord | None:
        """Use a link up and set the password; `name` is the first owner's. None: it is not good.

        Raises: `Conflict`: there is an owner by now.
        """
        ...


class SessionStore(Protocol):
    """Hold sessions; one is found only while everything that it rests on holds."""

    async def find(self, mac: bytes) -> Session | None:
        """Return a session that lives, and note that it was used."""
        ...

    async def living(self, ids: Collection[UUID]) -> Collection[UUID]: ...

    async def begin(
        self, organisation_id: UUID, draft: SessionDraft, password_hash: str | None
    ) -> Session | None:
        """Begin a session, and end the oldest of the same user or key beyond what one may have.

        None: the user or key may no longer, or the password is not that any more.
        """
        ...

    async def end(self, actor: Actor, organisation_id: UUID, session_id: UUID) -> Session | None:
        """End a session; None: there was none that lived."""
        ...

    async def page(
        self, organisation_id: UUID, request: PageRequest, *, of: UUID | None = None
    ) -> Page[Session]:
        """Return sessions that live, of one user or key, or all. Raises: `InvalidRequest`."""
        ...


class LoginAttempts(Protocol):
    """Count attempts to sign in, for all processes. Raises: `CountersUnavailable`."""

    async def take(self, buckets: Sequence[Bucket]) -> float:
        """Count one in each bucket, and return 0; or count none, and return the wait in s."""
        ...

    async def forget(self, bucket: Bucket) -> None:
        """Begin a bucket anew."""
        ...

    async def learn(self, place: str, life_s: float) -> None:
        """Remember from where somebody has signed in."""
        ...

    async def knows(self, place: str) -> bool:
        """Tell whether that is remembered."""
        ...


class AuditStore(Protocol):
    async def append(self, actor: Actor, entry: AuditEntry) -> AuditRecord:
        """Tell of a change that no other store has told of."""
        ...

    async def page(
        self, organisation_id: UUID, chosen: AuditFilter, request: PageRequest
    ) -> Page[AuditRecord]:
        """Return records, the newest first. Raises: `InvalidRequest`: the cursor."""
        ...

    async def head(self, organisation_id: UUID) -> AuditHead | None:
        """Return the newest record's place; None: there is no record."""
        ...

    async def head_was(self, organisation_id: UUID, seq: int) -> AuditHead | None:
        """Return the place of a record that was the newest once; None: there is none."""
        ...

    async def verify(
        self, organisation_id: UUID, heads: Collection[AuditHead] = ()
    ) -> AuditVerdict:
        """Walk an organisation's chain from its first record to its head, by way of `heads`."""
        ...


class HeadKeeper(Protocol):
    """Keep heads of audit logs where who can write to the database cannot."""

    def read(self, organisation_id: UUID) -> AuditHead | None: ...

    def write(self, organisation_id: UUID, head: AuditHead) -> None: ...
