"""That a window's use has passed a share of its limit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from gateway.domain.quota import Metric, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEvent:
    """Say that `used` of `amount` was reached; `tenant_id` is None above tenants.

    Of a scope, metric, window and percent there is one event, whoever sees it.
    """

    id: UUID
    at: datetime
    scope: Scope
    tenant_id: UUID | None
    metric: Metric
    window_start: datetime
    percent: int
    used: int
    amount: int


@dataclass(frozen=True, slots=True)
class DueEvent:
    """Pair an event with the name of its tenant and the number of this attempt to deliver it."""

    event: QuotaEvent
    tenant: str | None
    attempt: int
