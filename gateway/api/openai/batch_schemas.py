"""The wire types of batches, in OpenAI's shapes.

Ours are `paused_for`, `paused_because` and `num_awaiting_operator`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from gateway.api.openai.ids import BATCH_ID, batch_name, file_name
from gateway.domain.batch import Batch, BatchState

MAX_LIMIT: Final = 100
DEFAULT_LIMIT: Final = 20
_ID: Final = {"type": "string", "pattern": BATCH_ID}
BATCH_ID_PARAMETER: Final[dict[str, Any]] = {
    "name": "batch_id",
    "in": "path",
    "required": True,
    "schema": _ID,
}
_LIMIT: Final = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
BATCH_LIST_PARAMETERS: Final[list[dict[str, Any]]] = [
    {"name": "limit", "in": "query", "required": False, "schema": _LIMIT},
    {"name": "after", "in": "query", "required": False, "schema": _ID},
]


class OutputExpiresAfter(msgspec.Struct, forbid_unknown_fields=True):
    seconds: int
    anchor: Literal["created_at"] = "created_at"


class BatchRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Decode the body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: OutputExpiresAfter | None = None


class BatchErrorView(msgspec.Struct):
    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(msgspec.Struct):
    data: list[BatchErrorView]
    object: Literal["list"] = "list"


class BatchCounts(msgspec.Struct):
    """Count requests; those that were cancelled or expired failed too."""

    total: int
    completed: int
    failed: int


class BatchInputTokensDetails(msgspec.Struct):
    cached_tokens: int


class BatchOutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct):
    """Sum what was billed; what it has cost and saved is null where a model has no price.

    What is saved is told against the price of requests that do not wait.
    """

    input_tokens: int
    input_tokens_details: BatchInputTokensDetails
    output_tokens: int
    output_tokens_details: BatchOutputTokensDetails
    total_tokens: int
    cost_nano_usd: int | None = None
    saved_nano_usd: int | None = None


class BatchView(msgspec.Struct, kw_only=True):
    """Describe a batch; times are Unix time, null where that has not happened."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchState
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    usage: BatchUsage
    metadata: dict[str, str] | None
    paused_for: str | None
    paused_because: str | None
    num_awaiting_operator: int


class BatchList(msgspec.Struct):
    data: list[BatchView]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


def batch_view(batch: Batch) -> BatchView:
    """Show a batch as it stands."""

    def ended_as(state: BatchState) -> int | None:
        return _unix(batch.ended_at) if batch.state is state else None

    errors = [BatchErrorView(one.code, one.message, one.line, one.param) for one in batch.errors]
    return BatchView(
        id=batch_name(batch.id),
        endpoint=batch.draft.endpoint,
        model=batch.models[0] if len(batch.models) == 1 else None,
        errors=BatchErrors(errors) if errors else None,
        input_file_id=file_name(batch.draft.input_file_id),
        completion_window=_window(batch.draft.completion_window_s),
        status=batch.state,
        output_file_id=_file(batch.output_file_id),
        error_file_id=_file(batch.error_file_id),
        created_at=int(batch.created_at.timestamp()),
        in_progress_at=_unix(batch.in_progress_at),
        expires_at=int(batch.expires_at.timestamp()),
        finalizing_at=_unix(batch.finalizing_at),
        completed_at=ended_as(BatchState.COMPLETED),
        failed_at=ended_as(BatchState.FAILED),
        expired_at=ended_as(BatchState.EXPIRED),
        cancelling_at=_unix(batch.cancelling_at),
        cancelled_at=ended_as(BatchState.CANCELLED),
        request_counts=BatchCounts(
            batch.num_items, batch.num_done, batch.num_failed + batch.num_dropped
        ),
        usage=_usage(batch),
        metadata=None if batch.draft.metadata is None else dict(batch.draft.metadata),
        paused_for=batch.paused_for,
        paused_because=batch.paused_because,
        num_awaiting_operator=batch.num_dead,
    )


def _usage(batch: Batch) -> BatchUsage:
    cost = saved = None
    # Its models are known once it has started; one may have got its price only then.
    if batch.cost_nano_usd or (batch.models and set(batch.models) <= set(batch.price_ids)):
        cost = batch.cost_nano_usd
        saved = max(batch.full_nano_usd - cost, 0)
    return BatchUsage(
        batch.input_tokens,
        BatchInputTokensDetails(batch.cached_tokens),
        batch.output_tokens,
        BatchOutputTokensDetails(),
        batch.input_tokens + batch.output_tokens,
        cost,
        saved,
    )


def _window(seconds: int) -> str:
    return f"{seconds // 3600}h" if seconds % 3600 == 0 else f"{seconds // 60}m"


def _unix(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())


def _file(file_id: UUID | None) -> str | None:
    return None if file_id is None else file_name(file_id)
