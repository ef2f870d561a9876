"""Batches, their items, and what becomes of them."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Collection,
    Mapping,
    Sequence,
)
from typing import Protocol
from uuid import UUID

from gateway.domain.admin import (
    Actor,
)
from gateway.domain.batch import (
    Batch,
    BatchBacklog,
    BatchBounds,
    BatchDraft,
    BatchStep,
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
from gateway.domain.files import WholeFile
from gateway.domain.page import Page, PageRequest


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

    async def pause(self, paused: Mapping[UUID, str | None], why: PausedFor | None) -> None:
        """Have nothing of them handed out, for a reason that tenants see; None: go on.

        Each comes with what more its tenant is told of it.
        """
        ...

    async def full_tenants(self, max_stored_bytes: int) -> Collection[UUID]:
        """Return those with batches that have not ended whose files, and answers that are no file
        yet, are as many bytes.
        """
        ...

    async def open_batches(self) -> Sequence[Batch]:
        """Return all batches with items to hand out, also the paused ones, in no order.

        Without `metadata` and `errors`, at which their tenants alone look.
        """
        ...


class BatchSteps(Protocol):
    """Move batches on, each step from the state that it says: of several gateways one takes it."""

    async def due(self) -> Collection[BatchStep]:
        """Say which steps would find something to do: one question for all of them."""
        ...

    async def to_validate(
        self, limit: int, *, lease_s: float, left: Collection[UUID] = ()
    ) -> Sequence[Batch]:
        """Hand out batches to validate, none that is `left` to other processes.

        Nobody else gets them while the lease lasts.
        """
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
