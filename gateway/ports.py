"""What the services need from the outside, as protocols; `gateway.store` implements them.

Every method that takes `tenant_id` touches rows of that tenant alone. Methods raise
`gateway.errors.StoreUnavailable` where the store does not answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from gateway.domain import ApiKey, KeyRecord, KeySecret, Organisation, Tenant, TenantSlo, Tier
from gateway.domain.idempotency import Claim, KeyedRecord, SealedAnswer
from gateway.domain.quota import Scope
from gateway.domain.quota_event import DueEvent, QuotaEvent
from gateway.domain.usage import UsageQuestion, UsageRow, UsageSum


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


class LedgerStore(Protocol):
    """Hold a row a request for good, and their sums by the hour."""

    async def insert(self, rows: Sequence[UsageRow]) -> int:
        """Insert rows and add them to their hours' sums, in one transaction or two.

        A request that is there already stays as it is, but for one whose outcome is `LOST`: it is
        replaced by a row of another outcome. Returns how many rows were new or replaced.
        Raises: `InternalFailure`: a row holds what the ledger can never take.
        """
        ...

    async def used(self, wanted: Sequence[tuple[Scope, int, int]]) -> Sequence[tuple[int, int]]:
        """Sum what scopes have used: tokens in and out, and nano-USD, in the order asked.

        Each is asked for with a start and an end in seconds since 1970, both on whole hours.
        """
        ...


class UsageStore(Protocol):
    def sums(self, question: UsageQuestion) -> AsyncGenerator[Sequence[UsageSum], None]:
        """Answer in batches, sorted as the question's `by` says; close it where it is left early.

        With a `tenant_id`, a transaction that can see nothing but that tenant answers.
        """
        ...


class QuotaEventStore(Protocol):
    async def add(self, event: QuotaEvent, *, is_to_deliver: bool) -> bool:
        """Insert an event; False where its window has one of that percent already."""
        ...

    async def claim_due(self, limit: int, *, lease_s: float) -> Sequence[DueEvent]:
        """Hand out events to deliver now; nobody else gets them while the lease lasts."""
        ...

    async def delivered(self, event_id: UUID) -> None: ...

    async def failed(self, event_id: UUID, *, retry_in_s: float | None) -> None:
        """Hand an event out again later, or with None never."""
        ...


class IdempotencyStore(Protocol):
    async def claim(
        self, claim: Claim, body_hash: bytes, *, lease_s: float, keep_s: float
    ) -> KeyedRecord | None:
        """Make the record of a request, or take one over that expired or whose lease has passed.

        None: it is the caller's to run. Otherwise what is there of it.
        """
        ...

    async def renew(self, claims: Sequence[Claim], *, lease_s: float) -> None:
        """Prolong the leases of those claims that still hold."""
        ...

    async def save(self, claim: Claim, answer: SealedAnswer) -> bool:
        """Keep an answer; False where the claim was taken over."""
        ...

    async def release(self, claim: Claim) -> None:
        """Delete the record if the claim still holds."""
        ...

    async def sweep(self, limit: int) -> int:
        """Delete expired records, at most so many, and return how many."""
        ...

@dataclass(frozen=True, slots=True)
class CounterReply:
    """Answer a list of operations on the counters, in their order.

    `epoch` names this life of the counters: another one, or None, has forgotten what was counted.
    Until `built_us` hard limits let nothing through. Times are the counters' own, in microseconds
    since `gateway.services.quotas.wire.BASE_S`.
    """

    epoch: str | None
    built_us: int
    now_us: int
    answers: list[list[Any]]


class QuotaCounters(Protocol):
    """Count what is held and used, atomically, for all processes together."""

    async def run(self, ops: Sequence[Sequence[Any]]) -> CounterReply:
        """Do operations in their order, as `gateway/store/quota.lua` has them.

        Each is safe to repeat. Raises: `CountersUnavailable`: they may or may not have been done.
        """
        ...
