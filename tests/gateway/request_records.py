"""Records of finished requests, for the tests that write, read and show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

from gateway.domain.request_record import Cause, RequestRecord
from gateway.errors import StoreUnavailable

_RECORD = RequestRecord(
    request_id=UUID(int=0),
    at=datetime(2026, 11, 21, 10, 30, 0, 123456, UTC),
    organisation_id=UUID(int=1),
    tenant_id=UUID(int=2),
    key_id=UUID(int=3),
    model="demo",
    tier="default",
    status=200,
    code="",
    outcome="completed",
    cause=Cause.QUEUE,
    missed=("ttft",),
    is_preempted=False,
    is_degraded=False,
    duration_s=2.5,
    ttft_s=2.0,
    output_tokens=20,
    details={"sentence": "It waited.", "phases": [{"name": "sluice.auth", "begin_s": 0.0}]},
)


def request_record(**changes: object) -> RequestRecord:
    """Make the record of a new request."""
    return replace(_RECORD, **{"request_id": uuid4(), **changes})  # type: ignore[arg-type]


class FakeRecords:
    """Hold records in memory; the next inserts fail as many times as `num_away` says."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []
        self.batches: list[int] = []
        self.num_away = 0

    async def insert(self, records: Sequence[RequestRecord]) -> int:
        if self.num_away:
            self.num_away -= 1
            raise StoreUnavailable(detail="away")
        self.records += records
        self.batches.append(len(records))
        return len(records)
