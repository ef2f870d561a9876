"""What ended in the last minute, by tenant: who waited long, who missed what was promised.

Sums in slots of some seconds, so that a request costs one look-up and a few additions, whatever is
asked of it later. A slot knows so many tenants; what more of them do is counted together.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from gateway.domain.timeline import Timeline
from gateway.ports import Clock

WINDOW_S: Final = 60.0
_SLOT_S: Final = 5.0
MAX_TENANTS: Final = 1000


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


class RecentRequests:
    """Sum requests as they end; call `tell` with each."""

    def __init__(self, *, clock: Clock = time, max_tenants: int = MAX_TENANTS) -> None:
        self._clock = clock
        self._max_tenants = max_tenants
        self._slots: deque[tuple[float, dict[UUID | None, Recent]]] = deque()

    def tell(self, timeline: Timeline) -> None:
        """Count a request that is over; one that no tenant sent is not counted."""
        tenant_id = timeline.tenant_id
        if tenant_id is None:
            return
        slot = self._slot()
        found = slot.get(tenant_id)
        if found is None:
            name = tenant_id if len(slot) < self._max_tenants else None
            found = slot.setdefault(name, Recent())
        found.num_ended += 1
        found.num_failed += timeline.status >= 400 or timeline.outcome == "failed"
        found.output_tokens += timeline.output_tokens
        first_s = timeline.first_token_s
        if first_s is None:
            return
        ttft_s = first_s - timeline.began_s
        found.num_drawn += 1
        found.ttft_s += ttft_s
        found.worst_ttft_s = max(found.worst_ttft_s, ttft_s)
        if timeline.ttft_slo_s is not None or timeline.tpot_slo_s is not None:
            found.num_promised += 1
            found.num_missed += bool(timeline.missed())

    def sums(self) -> Mapping[UUID | None, Recent]:
        """Return the last minute by tenant; None are those that were not told apart."""
        self._forget()
        whole: dict[UUID | None, Recent] = {}
        for _, slot in self._slots:
            for tenant_id, recent in slot.items():
                whole.setdefault(tenant_id, Recent()).add(recent)
        return whole

    def _slot(self) -> dict[UUID | None, Recent]:
        now = self._clock.monotonic()
        if not self._slots or now - self._slots[-1][0] >= _SLOT_S:
            self._forget()
            self._slots.append((now, {}))
        return self._slots[-1][1]

    def _forget(self) -> None:
        late_s = self._clock.monotonic() - WINDOW_S
        while self._slots and self._slots[0][0] <= late_s:
            self._slots.popleft()
