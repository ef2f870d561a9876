"""What was used, of which limits, and by which requests."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from datetime import datetime
from typing import Protocol
from uuid import UUID

from gateway.domain.counters import CounterReply, Op
from gateway.domain.limits import LedgerSnapshot, Sums, Told
from gateway.domain.page import Page, PageRequest
from gateway.domain.past_request import PastRequest
from gateway.domain.quota import Scope
from gateway.domain.quota_event import DueEvent, QuotaEvent
from gateway.domain.request_record import RecordFilter, RequestRecord
from gateway.domain.usage import UsageBy, UsageQuestion, UsageRow, UsageSum


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


class QuotaCounters(Protocol):
    """Count what is held and used, atomically, for all processes together."""

    async def run(self, ops: Sequence[Op]) -> CounterReply:
        """Do operations in their order; each is safe to repeat.

        Raises: `CountersUnavailable`: they may or may not have been done.
        """
        ...

    def begin(
        self, ops: Sequence[Op], on_reply: Callable[[CounterReply | Exception], None]
    ) -> bool:
        """Do as `run` does and call `on_reply` with what that would return or raise.

        It is called where the answer is read, in a callback of the event loop, and may not raise.
        Returns: False, and nothing is done, where there is no connection to send on now.
        """
        ...


class ReplicaRates(Protocol):
    """Carry what gateways tell each other."""

    async def exchange(
        self, topic: str, replica: str, said: bytes, *, life_s: float
    ) -> Sequence[bytes]:
        """Say something of a topic for so long, and return what others say of it now.

        Raises: `CountersUnavailable`.
        """
        ...
