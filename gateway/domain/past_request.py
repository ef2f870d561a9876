"""A request as the ledger tells of it, for what would have become of it otherwise."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID


class PastRequest(NamedTuple):
    """Say who asked for how much and when; `is_batch` ones wait for what others leave."""

    at: datetime
    ended_at: datetime
    tenant_id: UUID
    tier: str
    is_batch: bool
    input_tokens: int
    output_tokens: int
    ttft_ms: float | None
