"""What operators and owners set."""

from __future__ import annotations

from collections.abc import (
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from typing import Protocol
from uuid import UUID

from gateway.domain import (
    Organisation,
)
from gateway.domain.admin import (
    Actor,
    AuditEntry,
)
from gateway.domain.desired import Desired, Present, Write
from gateway.domain.page import Page, PageRequest
from gateway.domain.plan import Plan
from gateway.domain.price import Price, PriceDraft
from gateway.domain.quota import Quota, ScopeQuota
from gateway.domain.quota_settings import QuotaHolder, QuotaOverride, QuotaState
from gateway.domain.scheduler_policy import OperatorPolicy


class PlanStore(Protocol):
    async def add(self, actor: Actor, organisation_id: UUID, name: str, quota: Quota) -> Plan:
        """Insert a plan. Raises: `Conflict`: the organisation has one of that name."""
        ...

    async def page(self, organisation_id: UUID, request: PageRequest) -> Page[Plan]:
        """Return plans by name. Raises: `InvalidRequest`: the cursor."""
        ...

    async def by_name(self, organisation_id: UUID, name: str) -> Plan | None: ...

    async def update(
        self,
        actor: Actor,
        organisation_id: UUID,
        name: str,
        changes: Mapping[str, object],
        *,
        version: int | None = None,
    ) -> Plan | None:
        """Set limits by the names that `Quota` gives them. Raises: `VersionConflict`."""
        ...

    async def remove(
        self, actor: Actor, organisation_id: UUID, name: str, *, version: int | None = None
    ) -> Plan | None:
        """Delete a plan. Raises: `Conflict`: tenants are on it; `VersionConflict`."""
        ...


class QuotaSettings(Protocol):
    """Keep the limits of scopes; every change raises `VersionConflict` where `version` is old.

    What an operator sets on a key is marked; another's change of that raises `SetByOperator`.
    """

    async def get(self, holder: QuotaHolder) -> QuotaState: ...

    async def put(
        self, actor: Actor, holder: QuotaHolder, quota: Quota, *, version: int | None = None
    ) -> QuotaState:
        """Replace a scope's own limits."""
        ...

    async def patch(
        self,
        actor: Actor,
        holder: QuotaHolder,
        changes: Mapping[str, object],
        *,
        version: int | None = None,
    ) -> QuotaState:
        """Set some of a scope's own limits, by the names that `Quota` gives them."""
        ...

    async def override(
        self,
        actor: Actor,
        holder: QuotaHolder,
        override: QuotaOverride,
        *,
        version: int | None = None,
    ) -> QuotaState:
        """Lay limits over a scope's own for a while, in place of what lay there."""
        ...

    async def clear(
        self, actor: Actor, holder: QuotaHolder, *, version: int | None = None
    ) -> QuotaState:
        """Take the override away."""
        ...


class PriceStore(Protocol):
    async def add(self, actor: Actor, organisation_id: UUID, draft: PriceDraft) -> Price:
        """Add the next version of a model's price; it holds from now on."""
        ...

    async def current(self) -> Sequence[Price]:
        """Return the newest version of every model's price."""
        ...

    async def page(self, request: PageRequest, *, every_version: bool = False) -> Page[Price]:
        """Return prices by model, the newest version or all. Raises: `InvalidRequest`."""
        ...

    async def find(self, model: str) -> Price | None:
        """Return the newest version of one model's price."""
        ...

    async def version(self, price_id: UUID) -> Price | None:
        """Return one version of a price, however old."""
        ...


class SettingsStore(Protocol):
    """Change all kinds of settings in one transaction: all of it is done, its audit records
    included, or nothing."""

    async def look(self, organisation: Organisation, desired: Desired) -> Present:
        """Return what there is of what is wanted. Raises: `StoreUnavailable`."""
        ...

    async def apply(
        self,
        actor: Actor,
        organisation: Organisation,
        desired: Desired,
        decide: Callable[[Present], Awaitable[Sequence[Write]]],
        agreed: Callable[[], Awaitable[None]],
    ) -> Sequence[ScopeQuota]:
        """Have `decide` say what is to be written to what is there, and write it.

        Nobody else changes what there is meanwhile. `agreed` may raise at the last moment. Returns
        the limits that hold now in scopes that had been there and were changed.
        Raises: what these raise; `Conflict`: something of a name was made meanwhile;
        `StoreUnavailable`: also where others held what is there for too long.
        """
        ...


class SchedulerPolicyStore(Protocol):
    """Hold what operators set of the schedulers, one for all processes."""

    async def get(self, organisation_id: UUID) -> OperatorPolicy:
        """Return what is set now; of version 0 where nothing ever was."""
        ...

    async def put(
        self, actor: Actor, entry: AuditEntry, policy: OperatorPolicy, *, replaces: int
    ) -> OperatorPolicy:
        """Set it as the version after `replaces`, and append the entry, whose organisation it is.

        Raises: `VersionConflict`: another version is there.
        """
        ...
