"""Who is served, and by which keys."""

from __future__ import annotations

from collections.abc import (
    Collection,
    Mapping,
    Sequence,
)
from datetime import datetime
from typing import Protocol
from uuid import UUID

from gateway.domain import (
    ApiKey,
    Ceilings,
    KeyDraft,
    KeyRecord,
    KeyRef,
    KeySecret,
    Org,
    Organisation,
    Tenant,
    TenantChoices,
    TenantFilter,
    TenantSlo,
)
from gateway.domain.admin import (
    Actor,
)
from gateway.domain.page import Page, PageRequest
from gateway.domain.tenant_archive import ArchivedTenant


class OrganisationStore(Protocol):
    async def default(self) -> Organisation:
        """Return the organisation of the first start."""
        ...


class OrgStore(Protocol):
    async def add(self, actor: Actor, organisation_id: UUID, name: str, weight: float) -> Org:
        """Insert an org. Raises: `Conflict`: there is one of that name."""
        ...

    async def page(self, organisation_id: UUID, request: PageRequest) -> Page[Org]:
        """Return orgs by name. Raises: `InvalidRequest`: the cursor."""
        ...

    async def by_name(self, organisation_id: UUID, name: str) -> Org | None: ...

    async def update(
        self,
        actor: Actor,
        organisation_id: UUID,
        name: str,
        changes: Mapping[str, object],
        *,
        version: int | None = None,
    ) -> Org | None:
        """Set its `weight`. None: no such org. Raises: `VersionConflict`."""
        ...

    async def remove(
        self, actor: Actor, organisation_id: UUID, name: str, *, version: int | None = None
    ) -> Org | None:
        """Remove an org; None: there is none.

        Raises: `Conflict`: tenants belong to it; `VersionConflict`.
        """
        ...


class TenantStore(Protocol):
    async def add(
        self,
        actor: Actor,
        organisation_id: UUID,
        name: str,
        weight: float,
        slo: TenantSlo,
        plan: str | None = None,
        ceilings: Ceilings = ...,
        org: str | None = None,
    ) -> Tenant:
        """Insert a tenant, on the plan and in the org of those names.

        Raises: `Conflict`: the organisation has one of that name; `NotFound`: no such plan or org.
        """
        ...

    async def update(
        self,
        actor: Actor,
        organisation_id: UUID,
        name: str,
        changes: Mapping[str, object],
        *,
        version: int | None = None,
    ) -> Tenant | None:
        """Set `weight`, `plan`, `org`, promises and ceilings by the names that `Tenant` has.

        None: no such tenant. Raises: `VersionConflict`; `NotFound`: no such plan or org.
        """
        ...

    async def list(self, organisation_id: UUID) -> Sequence[Tenant]: ...

    async def named(self, organisation_id: UUID, ids: Collection[UUID]) -> Sequence[Tenant]:
        """Return those of these ids that there are, archived ones too."""
        ...

    async def page(
        self,
        organisation_id: UUID,
        tenant_id: UUID | None,
        request: PageRequest,
        chosen: TenantFilter = ...,
    ) -> Page[Tenant]:
        """Return tenants by name, or that one alone. Raises: `InvalidRequest`: the cursor."""
        ...

    async def by_name(self, organisation_id: UUID, name: str) -> Tenant | None: ...

    async def choices(self, organisation_id: UUID, limit: int) -> TenantChoices:
        """Return the first names of plans and of orgs, so many of each at most."""
        ...


class TenantArchiveStore(Protocol):
    async def archive(
        self, actor: Actor, organisation_id: UUID, name: str, *, version: int | None = None
    ) -> ArchivedTenant | None:
        """Put a tenant out of use for good, in one step: its keys and admin tokens are revoked.

        Its name, plan and org are given back. None: no such tenant. Raises: `VersionConflict`.
        """
        ...


class KeyStore(Protocol):
    """Keep keys. Who changes one names it by a `KeyRef`; None: there is none of that name."""

    async def add(self, actor: Actor, tenant: Tenant, draft: KeyDraft) -> ApiKey:
        """Insert a key. Raises: `AboveCeiling`: the tenant has as many as it may."""
        ...

    async def page(
        self,
        organisation_id: UUID,
        tenant_id: UUID | None,
        request: PageRequest,
        *,
        is_live: bool = False,
    ) -> Page[ApiKey]:
        """Return the keys of one tenant, or of all, oldest first; `is_live`: those alone that are.

        Raises: `InvalidRequest`: the cursor.
        """
        ...

    async def get(self, ref: KeyRef) -> ApiKey | None: ...

    async def update(
        self,
        actor: Actor,
        ref: KeyRef,
        changes: Mapping[str, object],
        *,
        version: int | None = None,
    ) -> ApiKey | None:
        """Set fields by the names that `ApiKey` gives them, and mark those that an operator sets.

        Raises: `VersionConflict`; `SetByOperator`: the actor is none, and it is not its own.
        """
        ...

    async def revoke(self, actor: Actor, ref: KeyRef) -> ApiKey | None:
        """Revoke; a key that is revoked already stays as it is."""
        ...

    async def rotate(
        self, actor: Actor, ref: KeyRef, secret: KeySecret, *, old_ends_at: datetime | None
    ) -> ApiKey | None:
        """Give a key a new secret and end its present one at that time, or at once.

        What earlier rotations left ends at once. Raises: `Conflict`: the key is not active.
        """
        ...

    async def find(self, kid: str) -> KeyRecord | None:
        """Return what authenticates `kid`, dead keys included, with the limits that hold now."""
        ...

    async def of_id(self, key_id: UUID) -> KeyRecord | None:
        """Return the same of a key by its id, for work that was left with us."""
        ...

    async def dead(self, kids: Collection[str]) -> set[str]:
        """Return those that are revoked or expired, or that never were."""
        ...

    async def touch(self, used: Mapping[UUID, datetime]) -> None:
        """Move `last_used_at` of keys forward."""
        ...


class UntaggedTokenStore(Protocol):
    async def made_since(self, at: datetime | None) -> tuple[Collection[bytes], datetime]:
        """Return the first 8 bytes of the MAC of each key and admin token that has no tag, was
        made then or later, or ever; and the store's time, before which no more will be made.
        """
        ...


class AuthEpoch(Protocol):
    """Count revocations of keys and changes of tenants, for all processes. It fails open: one that
    cannot read it is bound by the life of its cache alone."""

    async def current(self) -> int | None:
        """Return the epoch, or None where it cannot be read."""
        ...

    async def advance(self, changed: str | None = None) -> None:
        """Move it; `changed` names what was, where that is one key or one tenant."""
        ...

    async def changed(self, after: int, to: int) -> Collection[str] | None:
        """Return what was changed since an epoch, or None where nobody can name all of it."""
        ...
