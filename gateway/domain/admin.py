"""Who administers, and what they did."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID


class AdminRole(StrEnum):
    """Name what an admin token may do; the modules of `gateway.api.admin` say who opens a route."""

    OWNER = "owner"
    OPERATOR = "operator"
    VIEWER = "viewer"
    TENANT_OWNER = "tenant-owner"
    TENANT_VIEWER = "tenant-viewer"

    @property
    def is_of_tenant(self) -> bool:
        """Tell whether a token of this role sees one tenant alone."""
        return self in (AdminRole.TENANT_OWNER, AdminRole.TENANT_VIEWER)


@dataclass(frozen=True, slots=True)
class Admin:
    """Say who speaks; `tenant_id` is set for the roles of a tenant, and only for them.

    `cidrs` are the networks that the credential is held to, and `tenant_cidrs` its tenant's keys;
    None holds to nothing.
    """

    name: str
    role: AdminRole
    organisation_id: UUID
    tenant_id: UUID | None = None
    cidrs: tuple[str, ...] | None = None
    tenant_cidrs: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class AdminToken:
    """Describe an admin token; the secret is not part of it. `kid` is the public id inside it."""

    id: UUID
    kid: str
    name: str
    role: AdminRole
    created_at: datetime
    tenant_id: UUID | None = None
    tenant: str | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminTokenDraft:
    """Say what a new admin token is to be; `mac` is what the store keeps of it."""

    kid: str
    pepper_id: str
    mac: bytes = field(repr=False)
    name: str
    role: AdminRole
    tenant_id: UUID | None = None
    expires_at: datetime | None = None
    is_tagged: bool = False


@dataclass(frozen=True, slots=True)
class AdminTokenRecord:
    """Pair an admin token with what proves it."""

    token: AdminToken
    pepper_id: str
    mac: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class IssuedAdminToken:
    """Pair a new admin token with its text, which is shown this once."""

    admin_token: AdminToken
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Actor:
    """Say who makes a change, from where, in which request; for the audit log."""

    name: str
    role: str
    ip: str | None = None
    request_id: str | None = None

    @property
    def is_of_tenant(self) -> bool:
        """Tell whether it is bound to a tenant, and to what operators have set of that."""
        return self.role in (AdminRole.TENANT_OWNER, AdminRole.TENANT_VIEWER)


SYSTEM = Actor("system", "system")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Describe one change; `before` and `after` hold no secrets, and None where there is none."""

    action: str
    object_kind: str
    object_id: str
    organisation_id: UUID
    tenant_id: UUID | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Pair an entry with its place in the organisation's hash chain.

    `pepper_id` names the root secret whose key the hash is made with; None: made before there was
    a key.
    """

    seq: int
    at: datetime
    actor: Actor
    entry: AuditEntry
    previous_hash: bytes = field(repr=False)
    hash: bytes = field(repr=False)
    pepper_id: str | None


@dataclass(frozen=True, slots=True)
class AuditHead:
    """Name a record that is, or was, a chain's last: kept elsewhere, it proves what came before."""

    seq: int
    hash: bytes
    at: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Choose records; None chooses all. `since <= at < until`."""

    tenant_id: UUID | None = None
    actor: str | None = None
    action: str | None = None
    object_kind: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """Say how far a chain holds: `broken_seq` is the first record that does not, or is missing.

    `seq` and `hash` are the chain's head. Records up to `unkeyed_seq` were made before there was a
    key, 0: none. `lost_seq` is the first of the heads asked for that is not in a chain that holds.
    """

    seq: int
    hash: bytes
    broken_seq: int | None = None
    unkeyed_seq: int = 0
    lost_seq: int | None = None
