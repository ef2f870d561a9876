"""Batches: many requests in a file that are answered when there is room, for half the price.

A batch goes validating → in_progress → finalizing → completed, and to failed, expired or (by way of
cancelling) cancelled. Its items are the lines of its input file. An item is run by whoever holds
it; a run that lost it, because its lease passed, is told apart by its `generation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID


class BatchState(StrEnum):
    """Say where a batch is, in the words that OpenAI's clients know."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


class BatchStep(StrEnum):
    """Name what a gateway does to move a batch on."""

    VALIDATE = "validate"
    DROP = "drop"
    FINALIZE = "finalize"


class PausedFor(StrEnum):
    """Say why nothing of a batch is run for now; it goes on by itself once that is over."""

    BUDGET = "budget"
    KEY_REVOKED = "key_revoked"
    MODEL_NOT_FOUND = "model_not_found"


@dataclass(frozen=True, slots=True)
class LineError:
    """Say what is wrong with a batch's input, in OpenAI's codes; `line` counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class BatchDraft:
    """Say what a batch is to be: who pays with which key, and what it runs until when."""

    id: UUID
    tenant_id: UUID
    key_id: UUID
    endpoint: str
    input_file_id: UUID
    completion_window_s: int
    metadata: Mapping[str, str] | None = None
    output_expires_after_s: int | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Hold a batch as it stands. `num_dropped` items were cancelled or expired.

    `models` are those that its lines ask for, by their own names. `cost_nano_usd` is what its
    items were billed, `full_nano_usd` what they would have been as requests that do not wait.
    `paused_because` is what its tenant is told of a pause beside `paused_for`.
    `num_dead` items wait for an operator, as their workers died of them; it is counted where one
    batch or a list is read.
    """

    draft: BatchDraft
    state: BatchState
    paused_for: PausedFor | None
    errors: Sequence[LineError]
    price_ids: Mapping[str, UUID]
    output_file_id: UUID | None
    error_file_id: UUID | None
    num_items: int
    num_done: int
    num_failed: int
    num_dropped: int
    enqueued_tokens: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    created_at: datetime
    expires_at: datetime
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    cancelling_at: datetime | None
    ended_at: datetime | None
    models: Sequence[str] = ()
    cost_nano_usd: int = 0
    full_nano_usd: int = 0
    num_dead: int = 0
    paused_because: str | None = None

    @property
    def id(self) -> UUID:
        return self.draft.id

    @property
    def tenant_id(self) -> UUID:
        return self.draft.tenant_id


@dataclass(frozen=True, slots=True)
class NamedBatch:
    """Pair a batch with the name of its tenant, for lists of all tenants' batches."""

    tenant: str
    batch: Batch


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Count the items of a batch that failed for one cause; `line` is the first of them."""

    code: str
    message: str
    number: int
    line: int


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """Bound what a tenant's batches that have not ended may wait with; None: no bound."""

    max_batches: int | None = None
    max_items: int | None = None
    max_enqueued_tokens: int | None = None


NO_BOUNDS: Final = BatchBounds()


@dataclass(frozen=True, slots=True)
class NewItem:
    """Name a line of a batch's input: `place` is its turn, which puts what begins alike together.

    `line` counts from 1; `enqueued_tokens` is what it counts for while it is not over.
    """

    line: int
    custom_id: str
    place: int
    offset_bytes: int
    size_bytes: int
    enqueued_tokens: int


class ItemState(StrEnum):
    """Say where one line of a batch is; `PENDING` and `RUNNING` are the ones that are not over."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, order=True)
class ItemRun:
    """Name one run of an item: the only one that may complete it while its generation is last."""

    batch_id: UUID
    line: int
    generation: int


@dataclass(frozen=True, slots=True)
class ClaimedItem:
    """Hold an item that was handed out; its request is so many bytes of the batch's input file.

    `num_attempts` counts this one; what was given back unharmed is not among them.
    """

    run: ItemRun
    tenant_id: UUID
    offset_bytes: int
    size_bytes: int
    num_attempts: int


@dataclass(frozen=True, slots=True)
class DeadItem:
    """Name an item that so many workers died of, and since when it waits for an operator."""

    tenant: str
    batch_id: UUID
    line: int
    custom_id: str
    num_deaths: int
    since: datetime


@dataclass(frozen=True, slots=True)
class BatchBacklog:
    """Count the items of all batches that wait and that run, and say how old the oldest batch is
    that has some of them waiting; 0 where none has.
    """

    num_pending: int
    num_running: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class ItemResult:
    """Hold the answer of a run on its way to its batch: one line of the output or error file."""

    run: ItemRun
    is_error: bool
    body: bytes = field(repr=False)
