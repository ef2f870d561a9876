"""What ended in the last minute, by tenant: who waited long, who missed what was promised.

Sums in slots of some seconds, so that a request costs one look-up and a few additions, whatever is
asked of it later. A slot knows so many tenants; what more of them do is counted together.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from gateway.domain.timeline import Timeline
from gateway.ports import Clock

WINDOW_S: Final = 60.0
_SLOT_S: Final = 5.0
MAX_TENANTS: Final = 1000
# Times to the first token are counted in buckets, each so much wider than the one below.
_LEAST_S: Final = 1e-3
_GROWTH: Final = 1.1
_LOG_GROWTH: Final = math.log(_GROWTH)


@dataclass(slots=True)
class Recent:
    """Sum what ended: of those promised something how many missed it, of those that drew a token
    how long the first took.
    """

    num_ended: int = 0
    num_failed: int = 0
    num_promised: int = 0
    num_missed: int = 0
    num_drawn: int = 0
    ttft_s: float = 0.0
    worst_ttft_s: float = 0.0
    output_tokens: int = 0

    def add(self, other: Recent) -> None:
        """Take in another sum."""
        # Spelled out: a view may add twelve thousand of them, on the event loop.
        self.num_ended += other.num_ended
        self.num_failed += other.num_failed
        self.num_promised += other.num_promised
        self.num_missed += other.num_missed
        self.num_drawn += other.num_drawn
        self.ttft_s += other.ttft_s
        self.worst_ttft_s = max(self.worst_ttft_s, other.worst_ttft_s)
        self.output_tokens += other.output_tokens

    @property
    def mean_ttft_s(self) -> float | None:
        """Return the mean time to the first token; None: no request drew one."""
        return self.ttft_s / self.num_drawn if self.num_drawn else None


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Say within which times the first tokens of so many requests came; None where there is none.

    The quantiles are of all tenants together and right to 5 %.
    """

    num_drawn: int = 0
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None


@dataclass(slots=True)
class _Slot:
    began_s: float
    tenants: dict[UUID | None, Recent] = field(default_factory=dict)
    # Of all tenants: a bucket → how many first tokens came in it.
    first_tokens: Counter[int] = field(default_factory=Counter)


class RecentRequests:
    """Sum requests as they end; call `tell` with each."""

    def __init__(self, *, clock: Clock = time, max_tenants: int = MAX_TENANTS) -> None:
        self._clock = clock
        self._max_tenants = max_tenants
        self._slots: deque[_Slot] = deque()

    def tell(self, timeline: Timeline) -> None:
        """Count a request that is over; one that no tenant sent is not counted."""
        tenant_id = timeline.tenant_id
        if tenant_id is None:
            return
        slot = self._slot()
        tenants = slot.tenants
        found = tenants.get(tenant_id)
        if found is None:
            name = tenant_id if len(tenants) < self._max_tenants else None
            found = tenants.setdefault(name, Recent())
        found.num_ended += 1
        found.num_failed += timeline.status >= 400 or timeline.outcome == "failed"
        found.output_tokens += timeline.output_tokens
        first_s = timeline.first_token_s
        if first_s is None:
            return
        ttft_s = first_s - timeline.began_s
        found.num_drawn += 1
        found.ttft_s += ttft_s
        slot.first_tokens[_bucket(ttft_s)] += 1
        found.worst_ttft_s = max(found.worst_ttft_s, ttft_s)
        if timeline.ttft_slo_s is not None or timeline.tpot_slo_s is not None:
            found.num_promised += 1
            found.num_missed += bool(timeline.missed())

    def sums(self) -> Mapping[UUID | None, Recent]:
        """Return the last minute by tenant; None are those that were not told apart."""
        self._forget()
        whole: dict[UUID | None, Recent] = {}
        for slot in self._slots:
            for tenant_id, recent in slot.tenants.items():
                whole.setdefault(tenant_id, Recent()).add(recent)
        return whole

    def of(self, tenant_id: UUID) -> Recent:
        """Return the last minute of one tenant; of one that was not told apart, nothing."""
        self._forget()
        whole = Recent()
        for slot in self._slots:
            found = slot.tenants.get(tenant_id)
            if found is not None:
                whole.add(found)
        return whole

    def first_tokens(self) -> FirstTokens:
        """Return how long first tokens took in the last minute."""
        self._forget()
        counts: Counter[int] = Counter()
        for slot in self._slots:
            counts.update(slot.first_tokens)
        number = counts.total()
        if not number:
            return FirstTokens()
        buckets = sorted(counts.items())
        return FirstTokens(
            number, *(_quantile_s(buckets, number, share) for share in (0.5, 0.95, 0.99))
        )

    def _slot(self) -> _Slot:
        now = self._clock.monotonic()
        if not self._slots or now - self._slots[-1].began_s >= _SLOT_S:
            self._forget()
            self._slots.append(_Slot(now))
        return self._slots[-1]

    def _forget(self) -> None:
        late_s = self._clock.monotonic() - WINDOW_S
        while self._slots and self._slots[0].began_s <= late_s:
            self._slots.popleft()


def _bucket(ttft_s: float) -> int:
    return int(math.log(max(ttft_s, _LEAST_S) / _LEAST_S) / _LOG_GROWTH)


def _quantile_s(buckets: list[tuple[int, int]], number: int, share: float) -> float:
    """Return the middle of the bucket that the quantile lies in."""
    rank, seen = math.ceil(share * number), 0
    for bucket, count in buckets:
        seen += count
        if seen >= rank:
            middle_s: float = _LEAST_S * _GROWTH ** (bucket + 0.5)
            return middle_s
    raise AssertionError("the last bucket reaches the number")
