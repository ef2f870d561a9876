"""What a tenant's last day would have met under other limits, reckoned from the ledger's rows.

Requests come as they did; one that would have been refused uses nothing. Rates are buckets that
fill up within a minute, days those of UTC. Prompts count whole, as they do when a request is let
in. What was refused really is in no row, and budgets and months, which reach further back than a
day, are not reckoned.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from typing import Final

from gateway.domain import Tenant
from gateway.domain.past_request import PastRequest
from gateway.domain.quota import Metric, Quota
from gateway.ports import Clock, PastRequestStore

MAX_REQUESTS: Final = 50_000
_DAY: Final = timedelta(days=1)
_MINUTE_S: Final = 60.0
# The limits that are reckoned, in the order in which the first that refuses is counted.
RECKONED: Final = (
    Metric.RPM,
    Metric.INPUT_TPM,
    Metric.OUTPUT_TPM,
    Metric.CONCURRENCY,
    Metric.DAILY_TOKENS,
)


@dataclass(frozen=True, slots=True)
class WouldHave:
    """Say how many of a day's requests would have been refused, and by which limits first.

    `is_part`: there were more, and these are the newest.
    """

    num_requests: int
    refused: Mapping[Metric, int]
    is_part: bool

    @property
    def num_refused(self) -> int:
        return sum(self.refused.values())


class PastLimits:
    """Try limits on what was; who may call this is decided above."""

    def __init__(self, past: PastRequestStore, *, clock: Clock = time) -> None:
        self._past = past
        self._clock = clock

    async def would_have(self, tenant: Tenant, quota: Quota) -> WouldHave:
        """Reckon what limits would have refused of a tenant. Raises: `StoreUnavailable`."""
        since = datetime.fromtimestamp(self._clock.time(), UTC) - _DAY
        past = await self._past.since(
            tenant.organisation_id,
            # The day that this one began in counts from its own beginning.
            since.replace(hour=0, minute=0, second=0, microsecond=0),
            limit=MAX_REQUESTS,
            tenant_id=tenant.id,
        )
        return await asyncio.to_thread(tried, past, quota, since)


def tried(past: Sequence[PastRequest], quota: Quota, since: datetime) -> WouldHave:
    """Try limits on requests, the oldest first; those before `since` use and are not counted."""
    reckoning = _Reckoning(quota)
    refused: Counter[Metric] = Counter()
    num_requests = 0
    for one in past:
        # Batches are let in by other limits.
        if one.is_batch:
            continue
        why = reckoning.refusal(one)
        if one.at >= since:
            num_requests += 1
            if why is not None:
                refused[why] += 1
    return WouldHave(num_requests, refused, len(past) >= MAX_REQUESTS)


class _Reckoning:
    """Hold what is used of each limit."""

    def __init__(self, quota: Quota) -> None:
        self._limits = {
            metric: amount for metric in RECKONED if (amount := quota.limit(metric)) is not None
        }
        self._used: dict[Metric, float] = dict.fromkeys(self._limits, 0.0)
        self._at_s = 0.0
        self._day = ""
        self._ends: list[datetime] = []

    def refusal(self, one: PastRequest) -> Metric | None:
        """Let a request in and return None, or return the limit that refuses it."""
        self._pass_until(one.at)
        amounts = {
            Metric.RPM: 1,
            Metric.INPUT_TPM: one.input_tokens,
            Metric.OUTPUT_TPM: one.output_tokens,
            Metric.CONCURRENCY: 1,
            Metric.DAILY_TOKENS: one.input_tokens + one.output_tokens,
        }
        for metric, limit in self._limits.items():
            if self._used[metric] + amounts[metric] > limit:
                return metric
        for metric in self._limits:
            self._used[metric] += amounts[metric]
        if Metric.CONCURRENCY in self._limits:
            heappush(self._ends, one.ended_at)
        return None

    def _pass_until(self, at: datetime) -> None:
        at_s = at.timestamp()
        passed_s, self._at_s = max(0.0, at_s - self._at_s), at_s
        for metric in (Metric.RPM, Metric.INPUT_TPM, Metric.OUTPUT_TPM):
            if metric in self._limits:
                back = self._limits[metric] * passed_s / _MINUTE_S
                self._used[metric] = max(0.0, self._used[metric] - back)
        while self._ends and self._ends[0] <= at:
            heappop(self._ends)
            self._used[Metric.CONCURRENCY] -= 1
        day = f"{at.astimezone(UTC):%Y%m%d}"
        if day != self._day and Metric.DAILY_TOKENS in self._limits:
            self._used[Metric.DAILY_TOKENS] = 0.0
        self._day = day
