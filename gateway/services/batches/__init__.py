"""Batches: validated, run when there is room, looked after, and written to files."""

from gateway.services.batches.failed_lines import FailedLines
from gateway.services.batches.finalizer import Finalizer
from gateway.services.batches.item_line import BadLine, ItemLine, read_line
from gateway.services.batches.message_batches import MessageBatches
from gateway.services.batches.service import (
    MAX_OPEN_ITEMS,
    BatchService,
    NewBatch,
    check_allowed,
)
from gateway.services.batches.upkeep import BatchUpkeep
from gateway.services.batches.validation import Validator

__all__ = [
    "MAX_OPEN_ITEMS",
    "BadLine",
    "BatchService",
    "BatchUpkeep",
    "FailedLines",
    "Finalizer",
    "ItemLine",
    "MessageBatches",
    "NewBatch",
    "Validator",
    "check_allowed",
    "read_line",
]
