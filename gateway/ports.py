"""What the services need from the outside, as protocols; `gateway.store` implements them.

Every method that takes `tenant_id` touches rows of that tenant alone. Methods raise
`gateway.errors.StoreUnavailable` where the store does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from gateway.domain import ApiKey, KeyRecord, KeySecret, Organisation, Tenant, TenantSlo, Tier


class Clock(Protocol):
    """Tell the time in seconds; the standard library's `time` module is one."""

    def time(self) -> float:
        """Return the wall clock, since 1970."""
        ...

    def monotonic(self) -> float:
        """Return a clock that never goes back, for intervals."""
        ...


class OrganisationStore(Protocol):
    async def default(self) -> Organisation:
        """Return the organisation of the first start."""
        ...


class TenantStore(Protocol):
    async def add(self, organisation_id: UUID, name: str, weight: float, slo: TenantSlo) -> Tenant:
        """Insert a tenant. Raises: `Conflict`: the organisation has one of that name."""
        ...

    async def update(
        self, organisation_id: UUID, name: str, changes: Mapping[str, float | None]
    ) -> Tenant | None:
        """Set `weight` and promises by the names that `Tenant` and `TenantSlo` give them.

        None: no such tenant.
        """
        ...

    async def list(self, organisation_id: UUID) -> Sequence[Tenant]: ...

    async def by_name(self, organisation_id: UUID, name: str) -> Tenant | None: ...


class KeyStore(Protocol):
    async def add(
        self,
        tenant: Tenant,
        *,
        kid: str,
        name: str,
        secret: KeySecret,
        expires_at: datetime | None,
        max_tier: Tier,
    ) -> ApiKey: ...

    async def list(self, organisation_id: UUID, tenant_id: UUID | None) -> Sequence[ApiKey]:
        """Return the keys of one tenant, or of all, oldest first."""
        ...

    async def revoke(self, organisation_id: UUID, key: UUID | str) -> ApiKey | None:
        """Revoke by id or kid; a key that is revoked already stays as it is. None: no such key."""
        ...

    async def find(self, kid: str) -> KeyRecord | None:
        """Return what authenticates `kid`, dead keys included."""
        ...

    async def touch(self, used: Mapping[UUID, datetime]) -> None:
        """Move `last_used_at` of keys forward."""
        ...


class AdminTokenStore(Protocol):
    async def find(self, kid: str) -> KeySecret | None: ...


class AuthEpoch(Protocol):
    """Count revocations of keys and changes of tenants, for all processes. It fails open: one that
    cannot read it is bound by the life of its cache alone."""

    async def current(self) -> int | None:
        """Return the epoch, or None where it cannot be read."""
        ...

    async def advance(self) -> None: ...
