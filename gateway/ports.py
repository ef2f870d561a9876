"""What the services need from the outside, as protocols; `gateway.store` implements them.

Every method that takes `tenant_id` touches rows of that tenant alone. Methods raise
`gateway.errors.StoreUnavailable` where the store does not answer.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
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
    TenantFilter,
    TenantSlo,
)
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
from gateway.domain.batch import (
    Batch,
    BatchBacklog,
    BatchBounds,
    BatchDraft,
    ClaimedItem,
    DeadItem,
    ErrorGroup,
    ItemResult,
    ItemRun,
    LineError,
    NamedBatch,
    NewItem,
    PausedFor,
)
from gateway.domain.counters import CounterReply, Op
from gateway.domain.desired import Desired, Present, Write
from gateway.domain.files import FileDraft, StoredFile, WholeFile, Written
from gateway.domain.idempotency import Claim, KeyedRecord, SealedAnswer
from gateway.domain.limits import LedgerSnapshot, Sums, Told
from gateway.domain.login_rate import Bucket
from gateway.domain.page import Page, PageRequest
from gateway.domain.past_request import PastRequest
from gateway.domain.plan import Plan
from gateway.domain.price import Price, PriceDraft
from gateway.domain.quota import Quota, Scope, ScopeQuota
from gateway.domain.quota_event import DueEvent, QuotaEvent
from gateway.domain.quota_settings import QuotaHolder, QuotaOverride, QuotaState
from gateway.domain.request_record import RecordFilter, RequestRecord
from gateway.domain.scheduler_policy import OperatorPolicy
from gateway.domain.sign_in import Caller, Session, SessionDraft, User, UserDraft, UserRecord
from gateway.domain.stored_response import SealedResponse
from gateway.domain.tenant_archive import ArchivedTenant
from gateway.domain.usage import UsageBy, UsageQuestion, UsageRow, UsageSum


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
        self, organisation_id: UUID, tenant_id: UUID | None, request: PageRequest
    ) -> Page[ApiKey]:
        """Return the keys of one tenant, or of all, oldest first. Raises: `InvalidRequest`."""
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


class UntaggedTokenStore(Protocol):
    async def made_since(self, at: datetime | None) -> tuple[Collection[bytes], datetime]:
        """Return the first 8 bytes of the MAC of each key and admin token that has no tag, was
        made then or later, or ever; and the store's time, before which no more will be made.
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


class AuthEpoch(Protocol):
    """Count revocations of keys and changes of tenants, for all processes. It fails open: one that
    cannot read it is bound by the life of its cache alone."""

    async def current(self) -> int | None:
        """Return the epoch, or None where it cannot be read."""
        ...

    async def advance(self) -> None: ...


class LedgerStore(Protocol):
    """Hold a row a request for good, and their sums by the hour and the day."""

    async def insert(self, rows: Sequence[UsageRow]) -> int:
        """Insert rows and add them to their hours' sums, in one transaction or two.

        A request that is there already stays as it is, but for one whose outcome is `LOST`: it is
        replaced by a row of another outcome. The answer that a `KeyedRow` carries goes into its
        record with it; where another run has answered that request, the row bills nothing.
        Returns how many rows were new or replaced.
        Raises: `InternalFailure`: a row holds what the ledger can never take.
        """
        ...

    async def used(self, wanted: Sequence[tuple[Scope, int, int]]) -> Sequence[Sums]:
        """Sum what scopes have used, in the order asked.

        Each is asked for with a start and an end in seconds since 1970, both on whole hours.
        """
        ...

    async def booked(self, ids: Collection[UUID], since_s: float) -> Mapping[UUID, Told]:
        """Return what the rows of requests say that they used, of those begun since then."""
        ...

    async def snapshot(
        self, wanted: Sequence[tuple[Scope, int, int]], ids: Collection[UUID], since_s: float
    ) -> LedgerSnapshot:
        """Return what `used` and `booked` do, of one moment, and what of it are lost requests.

        A process that was cut off vouches with such a row for a request that it runs still.
        """
        ...


class UsageStore(Protocol):
    def sums(self, question: UsageQuestion) -> AsyncGenerator[Sequence[UsageSum], None]:
        """Answer in batches, sorted as the question's `by` says; close it where it is left early.

        With a `tenant_id`, a transaction that can see nothing but that tenant answers.
        """
        ...

    def sums_by(
        self, question: UsageQuestion, ways: Sequence[tuple[UsageBy, ...]]
    ) -> AsyncGenerator[Sequence[tuple[int, UsageSum]], None]:
        """Answer as each of `ways` tells apart, not as `by` does, from one look: (way, sum).

        No two ways tell the same apart. It is else as `sums`, and sorted by what they tell apart
        in the order that the ways name it first.
        """
        ...


class PastRequestStore(Protocol):
    """Tell of requests that the ledger has a row of."""

    async def since(
        self,
        organisation_id: UUID,
        since: datetime,
        *,
        limit: int,
        tenant_id: UUID | None = None,
        model: str | None = None,
    ) -> Sequence[PastRequest]:
        """Return those that began since then, the oldest first; of many the newest `limit`."""
        ...


class RequestRecordStore(Protocol):
    """Hold records of finished requests for a while; `within` bounds what is seen to a tenant."""

    async def insert(self, records: Sequence[RequestRecord]) -> int:
        """Insert records, those that are there already aside; return how many were new."""
        ...

    async def get(
        self, organisation_id: UUID, request_id: UUID, *, within: UUID | None = None
    ) -> RequestRecord | None: ...

    async def page(
        self,
        organisation_id: UUID,
        chosen: RecordFilter,
        request: PageRequest,
        *,
        within: UUID | None = None,
    ) -> Page[RequestRecord]:
        """Return records without their details, the newest first. Raises: `InvalidRequest`."""
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


class ResponseStore(Protocol):
    """Keep responses; a tenant sees its own."""

    async def save(self, response: SealedResponse) -> bool:
        """Store a response; False where its tenant is archived."""
        ...

    async def get(self, tenant_id: UUID, response_id: UUID) -> SealedResponse | None:
        """Return a response; None: the tenant has none with this id."""
        ...

    async def chain(
        self, tenant_id: UUID, response_id: UUID, limit: int
    ) -> Sequence[SealedResponse]:
        """Return a response and those that it goes on from, the first first, as far as they are
        there, and at most so many."""
        ...

    async def delete(self, tenant_id: UUID, response_id: UUID) -> bool:
        """Delete a response; False: there was none."""
        ...

    async def trim(self, tenant_id: UUID, *, max_rows: int, max_bytes: int) -> int:
        """Delete a tenant's oldest above its bounds; return how many."""
        ...


class BatchQueue(Protocol):
    """Hand out the items of batches. Methods that take runs return those that still hold."""

    async def claim(
        self, batch_id: UUID, worker_id: UUID, *, limit: int, lease_s: float
    ) -> Sequence[ClaimedItem]:
        """Hand out the next items of a batch that is in progress, at most so many, in order."""
        ...

    async def renew(self, runs: Collection[ItemRun], *, lease_s: float) -> Collection[ItemRun]:
        """Prolong leases, also ones that have passed if nobody has taken the items back."""
        ...

    async def give_back(
        self, runs: Collection[ItemRun], *, is_unharmed: bool, after_s: float = 0.0
    ) -> Collection[ItemRun]:
        """Put items back into the queue, to be handed out after a while.

        `is_unharmed`: that they were handed out does not count as an attempt.
        """
        ...

    async def take_back(self, limit: int) -> int:
        """Put items back whose leases have passed, at most so many, and return how many."""
        ...


class BacklogStore(Protocol):
    """Say what batches have left to do."""

    async def backlog(self) -> BatchBacklog:
        """Count, of all tenants."""
        ...


class DeadItemStore(Protocol):
    """Hold the items that killed their workers, until an operator has them run again."""

    async def page(
        self,
        organisation_id: UUID,
        request: PageRequest,
        *,
        tenant_id: UUID | None = None,
        batch_id: UUID | None = None,
    ) -> Page[DeadItem]:
        """Return them by batch and line: of a tenant, of a batch, or all."""
        ...

    async def requeue(
        self,
        actor: Actor,
        organisation_id: UUID,
        batch_id: UUID,
        lines: Collection[int] | None,
        *,
        limit: int,
    ) -> Sequence[int] | None:
        """Put those of a batch back into the queue, all or the ones of `lines`, at most so many.

        Returns the lines that were; None: there is no such batch.
        """
        ...

    async def count(self) -> int:
        """Return how many wait, of all tenants."""
        ...


# Answers which of these files have a row.
IsKnown = Callable[[Collection[UUID]], Awaitable[Collection[UUID]]]


class FileStorage(Protocol):
    """Keep the bytes of files under their ids.

    Methods raise `StorageUnavailable` where it does not answer or is full.
    """

    async def write(
        self, file_id: UUID, chunks: AsyncIterable[bytes], *, max_bytes: int
    ) -> Written:
        """Store what comes, durably; nothing stays of it if this raises or is cancelled.

        Raises: `FileTooLarge`; what `chunks` raises.
        """
        ...

    def read(
        self, file_id: UUID, *, offset_bytes: int = 0, size_bytes: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Return a file in chunks of at most 1 MiB; close it where it is left early.

        Raises: `StoredFileMissing`.
        """
        ...

    async def remove(self, file_ids: Collection[UUID]) -> None:
        """Remove files; one that is not there is no error."""
        ...

    async def sweep(self, *, older_than_s: float, is_known: IsKnown) -> int:
        """Remove what nobody knows and was not written to for so long; return how many."""
        ...


class FileStore(Protocol):
    """Hold the rows of files. One that is not whole yet is seen by `begin` and `sweep` alone."""

    async def begin(self, draft: FileDraft) -> None:
        """Note a file before its first byte, so that what a crash leaves is found."""
        ...

    async def complete(
        self, tenant_id: UUID, file_id: UUID, written: Written, *, max_stored_bytes: int | None
    ) -> StoredFile:
        """Make a file seen. Raises: `StorageFull`: the tenant would have more than so much."""
        ...

    async def get(self, tenant_id: UUID, file_id: UUID) -> StoredFile | None: ...

    async def page(
        self,
        tenant_id: UUID,
        request: PageRequest,
        *,
        purpose: str | None = None,
        is_ascending: bool = False,
    ) -> Page[StoredFile]: ...

    async def remove(self, tenant_id: UUID, file_id: UUID) -> bool:
        """Forget a file, whole or not; False: there is none.

        Raises: `FileInUse`: a batch is reading it.
        """
        ...

    async def stored_bytes(self, tenant_id: UUID) -> int: ...

    async def sweep(self, limit: int, *, unready_for_s: float) -> Collection[UUID]:
        """Forget files that expired or whose upload died, and return their ids."""
        ...

    async def known(self, file_ids: Collection[UUID]) -> Collection[UUID]: ...


class BatchListStore(Protocol):
    async def get_of_all(self, organisation_id: UUID, batch_id: UUID) -> NamedBatch | None: ...

    async def error_groups(self, batch_id: UUID, *, limit: int) -> Sequence[ErrorGroup]:
        """Group the failed items of a batch that has not ended by cause, the most first.

        Of more than `limit` those of the first lines are grouped.
        """
        ...

    async def page_of_all(
        self,
        organisation_id: UUID,
        request: PageRequest,
        *,
        tenant_id: UUID | None = None,
        is_open: bool | None = None,
    ) -> Page[NamedBatch]:
        """Return batches of all tenants, or of one, the newest first; those that have not ended,
        or have. Raises: `InvalidRequest`: the cursor.
        """
        ...


class BatchStore(Protocol):
    """Hold batches, and what their tenants ask for."""

    async def create(self, draft: BatchDraft, *, max_batches: int | None = None) -> Batch:
        """Make a batch to be validated; the one that has this idempotency key already is returned.

        Raises: `FileNotFound`: the input is no file of this tenant; `TenantLimited`: it has as many
        batches that have not ended as it may.
        """
        ...

    async def get(self, tenant_id: UUID, batch_id: UUID) -> Batch | None: ...

    async def page(
        self,
        tenant_id: UUID,
        request: PageRequest,
        *,
        endpoint: str | None = None,
        is_ascending: bool = False,
    ) -> Page[Batch]:
        """List a tenant's batches, of one endpoint or of all; the newest first unless told."""
        ...

    async def delete(self, tenant_id: UUID, batch_id: UUID) -> bool:
        """Forget a batch that has ended; False: there is no such one. Its files stay."""
        ...

    async def cancel(self, tenant_id: UUID, batch_id: UUID) -> Batch | None:
        """Have a batch cancelled: `BatchSteps.drop` drops what has not begun, what runs may end.

        One that is not validated yet ends at once. One that is over, or nearly, stays as it is.
        """
        ...

    async def pause(self, batch_id: UUID, why: PausedFor | None) -> None:
        """Have nothing of it handed out, for a reason that its tenant sees; None: go on."""
        ...

    async def open_batches(self) -> Sequence[Batch]:
        """Return all batches with items to hand out, also the paused ones."""
        ...


class BatchSteps(Protocol):
    """Move batches on, each step from the state that it says: of several gateways one takes it."""

    async def to_validate(self, limit: int, *, lease_s: float) -> Sequence[Batch]:
        """Hand out batches to validate; nobody else gets them while the lease lasts."""
        ...

    async def hold(self, batch_id: UUID, *, lease_s: float) -> bool:
        """Prolong the lease of a batch; False where nothing is to be done to it any longer."""
        ...

    async def add_items(self, batch_id: UUID, items: Sequence[NewItem]) -> None:
        """Add a part of a batch's items; those of an earlier try at this batch are overwritten."""
        ...

    async def start(
        self,
        batch_id: UUID,
        price_ids: Mapping[str, UUID],
        *,
        models: Sequence[str] = (),
        bounds: BatchBounds = ...,
    ) -> bool:
        """validating → in_progress, with the items added; False where it was cancelled meanwhile.

        Raises: `EnqueuedTokensExceeded`: the tenant's batches would wait with more than they may.
        """
        ...

    async def fail(self, batch_id: UUID, errors: Sequence[LineError]) -> None:
        """validating → failed; it has no items."""
        ...

    async def drop(self) -> int:
        """Drop a slice of what has not begun of batches that are cancelled or past their window.

        What still runs of one is dropped after a while too, and its run has lost it then. One whose
        window passes before it is validated ends. Returns how much was dropped; call it again
        until that is nothing.
        """
        ...

    async def to_finalize(self, limit: int, *, lease_s: float) -> Sequence[Batch]:
        """Hand out batches whose items are all over, and that have no output files yet."""
        ...

    def results(
        self, batch_id: UUID, *, is_error: bool
    ) -> AsyncGenerator[Sequence[ItemResult], None]:
        """Return the results of either kind in parts of some megabytes, by line."""
        ...

    def dropped(self, batch_id: UUID) -> AsyncGenerator[Sequence[tuple[int, str, bool]], None]:
        """Return in parts the line, custom id, and whether it expired, of items that were."""
        ...

    async def finish(
        self, batch_id: UUID, *, output: WholeFile | None, error: WholeFile | None
    ) -> bool:
        """finalizing → completed, expired or cancelled; its results are files now and are dropped.

        The files are seen from then on. False, and they are not, where somebody else has finished
        it.
        """
        ...


class QuotaCounters(Protocol):
    """Count what is held and used, atomically, for all processes together."""

    async def run(self, ops: Sequence[Op]) -> CounterReply:
        """Do operations in their order; each is safe to repeat.

        Raises: `CountersUnavailable`: they may or may not have been done.
        """
        ...


class ReplicaRates(Protocol):
    """Carry what replicas of a model tell each other."""

    async def exchange(
        self, model: str, replica: str, said: bytes, *, life_s: float
    ) -> Sequence[bytes]:
        """Say something of a model for so long, and return what others say of it now.

        Raises: `CountersUnavailable`.
        """
        ...
