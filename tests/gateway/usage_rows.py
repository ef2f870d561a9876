"""Rows of the ledger, for the tests that write and sum them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

from gateway.domain.tier import Tier
from gateway.domain.usage import Outcome, UsageRow
from gateway.errors import StoreUnavailable

MORNING = datetime(2026, 11, 21, 10, 30, 0, 123456, UTC)

_ROW = UsageRow(
    request_id=UUID(int=0),
    at=MORNING,
    ended_at=MORNING,
    organisation_id=UUID(int=1),
    tenant_id=UUID(int=2),
    key_id=UUID(int=3),
    model="demo",
    tier=Tier.DEFAULT,
    is_batch=False,
    input_tokens=100,
    cached_tokens=10,
    output_tokens=20,
    nano_usd=1234,
    price_id=UUID(int=4),
    outcome=Outcome.COMPLETED,
    ttft_ms=12.5,
)


def usage_row(**changes: object) -> UsageRow:
    """Make a row of a new request."""
    return replace(_ROW, **{"request_id": uuid4(), **changes})  # type: ignore[arg-type]


class FakeLedger:
    """Hold rows in memory; the next inserts fail as many times as `failures` has errors."""

    def __init__(self) -> None:
        self.rows: list[UsageRow] = []
        self.failures: list[Exception] = []
        self.batches: list[int] = []

    def go_away(self, times: int) -> None:
        self.failures += [StoreUnavailable(detail="away")] * times

    async def insert(self, rows: Sequence[UsageRow]) -> int:
        if self.failures:
            raise self.failures.pop(0)
        self.batches.append(len(rows))
        self.rows += rows
        return len(rows)
