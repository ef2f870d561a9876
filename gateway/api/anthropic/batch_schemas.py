"""The wire types of batches of messages, in Anthropic's shapes."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from gateway.domain.batch import Batch, BatchState
from gateway.errors import NotFound
from gateway.services.batches.message_batches import never_ran, num_requests

MAX_LIMIT: Final = 1000
DEFAULT_LIMIT: Final = 20
CUSTOM_ID: Final = "^[A-Za-z0-9_-]{1,64}$"
_ID_PATTERN: Final = "^msgbatch_[0-9a-f]{32}$"
_NAME: Final = re.compile(r"msgbatch_([0-9a-f]{32})", re.ASCII)
_ID: Final = {"type": "string", "pattern": _ID_PATTERN}
MESSAGE_BATCH_ID_PARAMETER: Final[dict[str, Any]] = {
    "name": "message_batch_id",
    "in": "path",
    "required": True,
    "schema": _ID,
}
_LIMIT: Final = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
MESSAGE_BATCH_LIST_PARAMETERS: Final[list[dict[str, Any]]] = [
    {"name": "limit", "in": "query", "required": False, "schema": _LIMIT},
    {"name": "after_id", "in": "query", "required": False, "schema": _ID},
    {"name": "before_id", "in": "query", "required": False, "schema": _ID},
]


class BatchedMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Hold one request of a batch; of what it asks nothing is built here."""

    custom_id: str
    params: msgspec.Raw


class MessageBatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Decode the body of `POST /v1/messages/batches`."""

    requests: list[BatchedMessage]


class MessageBatchCounts(msgspec.Struct):
    """Count requests; unlike Anthropic's, also while the batch runs."""

    processing: int
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatchView(msgspec.Struct, kw_only=True):
    """Describe a batch; times are RFC 3339.

    `x_paused_for` and `x_paused_because`, ours, say why nothing runs for now.
    """

    id: str
    type: Literal["message_batch"] = "message_batch"
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: None = None
    results_url: str | None
    x_paused_for: str | msgspec.UnsetType = msgspec.UNSET
    x_paused_because: str | msgspec.UnsetType = msgspec.UNSET


class MessageBatchList(msgspec.Struct):
    data: list[MessageBatchView]
    has_more: bool
    first_id: str | None
    last_id: str | None


class MessageBatchDeleted(msgspec.Struct):
    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"


def message_batch_name(batch_id: UUID) -> str:
    """Write a batch's id."""
    return f"msgbatch_{batch_id.hex}"


def read_message_batch_id(text: str, *, param: str = "message_batch_id") -> UUID:
    """Read a batch's id. Raises: `NotFound`: no batch has such a one."""
    if match := _NAME.fullmatch(text):
        return UUID(match[1])
    raise NotFound("There is no such batch.", param=param)


def message_batch_view(batch: Batch) -> MessageBatchView:
    """Show a batch as it stands."""
    name = message_batch_name(batch.id)
    has_ended = batch.ended_at is not None
    return MessageBatchView(
        id=name,
        processing_status=(
            "ended"
            if has_ended
            else "canceling"
            if batch.cancelling_at is not None
            else "in_progress"
        ),
        request_counts=_counts(batch),
        created_at=_time(batch.created_at),
        expires_at=_time(batch.expires_at),
        ended_at=None if batch.ended_at is None else _time(batch.ended_at),
        cancel_initiated_at=None if batch.cancelling_at is None else _time(batch.cancelling_at),
        results_url=f"/v1/messages/batches/{name}/results" if has_ended else None,
        x_paused_for=batch.paused_for or msgspec.UNSET,
        x_paused_because=batch.paused_because or msgspec.UNSET,
    )


def _counts(batch: Batch) -> MessageBatchCounts:
    total = num_requests(batch)
    match never_ran(batch):
        case BatchState.FAILED:
            return MessageBatchCounts(0, errored=total)
        case BatchState.EXPIRED:
            return MessageBatchCounts(0, expired=total)
        case None:
            pass
        case _:
            return MessageBatchCounts(0, canceled=total)
    is_cancelled = batch.cancelling_at is not None
    return MessageBatchCounts(
        processing=total - batch.num_done - batch.num_failed - batch.num_dropped,
        succeeded=batch.num_done,
        errored=batch.num_failed,
        canceled=batch.num_dropped if is_cancelled else 0,
        expired=0 if is_cancelled else batch.num_dropped,
    )


def _time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
