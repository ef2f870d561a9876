"""What was used: one row of the ledger a request, sums of rows, and questions about sums."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from gateway.domain.batch import ItemResult
from gateway.domain.idempotency import KeyedAnswer
from gateway.domain.tier import Tier


class Outcome(StrEnum):
    """Say how a request ended, as far as its bill goes.

    `LOST` is a request whose process died: it is billed what was last written down about it.
    """

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """Bill one request. `(request_id, at)` is unique; `at` is when it was reserved.

    `cached_tokens` are among the `input_tokens`. `price_id` names the version of the price, None
    where the model has none. `rate_tokens` is what it counts for in rates of input: the journal has
    it, for whoever settles it with the counters, the ledger does not.
    """

    request_id: UUID
    at: datetime
    ended_at: datetime
    organisation_id: UUID
    tenant_id: UUID
    key_id: UUID
    model: str
    tier: Tier
    is_batch: bool
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    nano_usd: int
    price_id: UUID | None
    outcome: Outcome
    ttft_ms: float | None = None
    rate_tokens: int | None = None

    def bill(self) -> UsageRow:
        """Return what the ledger has of it."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRow(UsageRow):
    """Bill a request with an `Idempotency-Key`, and carry its answer: both are stored, or none."""

    keyed: KeyedAnswer

    @classmethod
    def of(cls, row: UsageRow, keyed: KeyedAnswer) -> KeyedRow:
        return cls(**_values(row), keyed=keyed)

    def bill(self) -> UsageRow:
        """Return what the ledger has of it."""
        return UsageRow(**_values(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRow(UsageRow):
    """Bill an item of a batch, and carry its result: both are stored, or none.

    `full_nano_usd` is what it would be as a request of the default tier; None: a line of the
    journal that an earlier release wrote does not say.
    """

    item: ItemResult
    full_nano_usd: int | None = None

    @classmethod
    def of(cls, row: UsageRow, item: ItemResult, full_nano_usd: int | None = None) -> ItemRow:
        return cls(**_values(row), item=item, full_nano_usd=full_nano_usd)

    def bill(self) -> UsageRow:
        """Return what the ledger has of it."""
        return UsageRow(**_values(self))


def _values(row: UsageRow) -> dict[str, Any]:
    return {one.name: getattr(row, one.name) for one in fields(UsageRow)}


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Sum rows of the ledger."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    nano_usd: int = 0
    requests: int = 0


class UsageBy(StrEnum):
    """Name what sums of usage can be told apart by. Days and hours are those of UTC."""

    DAY = "day"
    HOUR = "hour"
    TENANT = "tenant"
    MODEL = "model"
    KEY = "key"
    TIER = "tier"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuestion:
    """Ask for sums over requests that began in `start <= at < end`, of an organisation.

    None asks for all tenants, keys or models.
    """

    organisation_id: UUID
    start: datetime
    end: datetime
    by: tuple[UsageBy, ...]
    tenant_id: UUID | None = None
    key_id: UUID | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class UsageSum:
    """Answer with one sum; `of` is in the order of the question's `by`.

    A tenant is told by its name, a key by its kid, a day as 2026-11-21 and an hour as
    2026-11-21T10:00:00Z.
    """

    of: tuple[str, ...]
    totals: UsageTotals
