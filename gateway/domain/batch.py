"""Batches: many requests in a file that are answered when there is room, for half the price.

A batch goes validating → in_progress → finalizing → completed, and to failed, expired or (by way of
cancelling) cancelled. Its items are the lines of its input file. An item is run by whoever holds
it; a run that lost it, because its lease passed, is told apart by its `generation`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
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
class ItemResult:
    """Hold the answer of a run on its way to its batch: one line of the output or error file."""

    run: ItemRun
    is_error: bool
    body: bytes = field(repr=False)
