"""Who administers, and what they did."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID


class AdminRole(StrEnum):
    """Name what an admin token may do; `gateway.api.admin_roles` has the routes of each."""

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
    """Say who speaks; `tenant_id` is set for the roles of a tenant, and only for them."""

    name: str
    role: AdminRole
    organisation_id: UUID
    tenant_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Actor:
    """Say who makes a change, from where, in which request; for the audit log."""

    name: str
    role: str
    ip: str | None = None
    request_id: str | None = None


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
    """Pair an entry with its place in the organisation's hash chain."""

    seq: int
    at: datetime
    actor: Actor
    entry: AuditEntry
    previous_hash: bytes = field(repr=False)
    hash: bytes = field(repr=False)
