"""Hold the counters against the ledger, once a minute, and mend what stays wrong.

Between a settlement and its row in the ledger a counter is ahead for less than a second; it is
never behind. So one that is behind twice in a row has lost something (a server that failed over to
a replica) and is raised by the least that was missing. One that
stays ahead by the same amount, with nothing held, is believed for ten rounds before it is lowered:
a gateway cut off from the database may still hold the rows.

A window that is not counted, as its limit is gone, has nothing to mend however far it is behind: it
is let go of until a request meets it again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from gateway.background import JITTER, Background
from gateway.domain.counters import Done, ReadSlot, Repair, SlotUse
from gateway.domain.limits import Limit, Sums
from gateway.domain.quota import Metric, Scope
from gateway.domain.window import Window
from gateway.services.quotas.loads import Slotted
from gateway.services.quotas.service import QuotaService
from gateway.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
_ROUNDS_BEHIND: Final = 2
_ROUNDS_AHEAD: Final = 10
_BATCH: Final = 200

# whose, of what, over what, and the start of the slot
_Window = tuple[Scope, Metric, Window | None, int]


class SumsUsage(Protocol):
    """Know from the ledger what scopes have used between two times."""

    async def used(self, wanted: Sequence[Slotted]) -> Sequence[Sums]: ...


class Reconciler:
    """Compare the windows that requests met here, until they or their limits end, with the
    ledger."""

    def __init__(
        self,
        quotas: QuotaService,
        ledger: SumsUsage,
        metrics: Metrics,
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._quotas = quotas
        self._interval_s = interval_s
        self._ledger = ledger
        self._metrics = metrics
        self._drifts: dict[_Window, list[int]] = {}
        self._watched: dict[_Window, Limit] = {}

    def running(self) -> Background:
        """Compare in the background while the block runs."""
        return Background(
            "reconciliation",
            self.round,
            interval_s=self._interval_s,
            jitter=JITTER,
            level=logging.DEBUG,
        )

    async def round(self) -> float:
        """Compare once and mend; return the largest drift as a share of its limit.

        Raises: `CountersUnavailable`, `StoreUnavailable`.
        """
        now_s = self._quotas.link.now_s()
        for limits in self._quotas.compiler.take_asked():
            for limit in limits.limits:
                if limit.slot is not None:
                    self._watched[_window(limit)] = limit
        self._watched = {
            window: limit
            for window, limit in self._watched.items()
            if limit.slot is not None and limit.slot.end_s > now_s
        }
        watched, worst = list(self._watched.items()), 0.0
        drifts: dict[_Window, list[int]] = {}
        for first in range(0, len(watched), _BATCH):
            for window, limit, drift, used, held in await self._compare(
                watched[first : first + _BATCH]
            ):
                drifts[window] = [*self._drifts.get(window, ()), drift][-_ROUNDS_AHEAD:]
                worst = max(worst, abs(drift) / max(limit.amount, 1))
                if await self._mend(limit, drifts[window], used, held):
                    drifts[window] = []
        self._drifts = drifts
        self._metrics.quota_drift.set(worst)
        return worst

    async def _compare(
        self, watched: Sequence[tuple[_Window, Limit]]
    ) -> list[tuple[_Window, Limit, int, int, int]]:
        """Return windows with their drift, and what is used and held in them; let go of those that
        are not counted."""
        # The counters first: a row that comes in between makes them look behind for one round.
        slots = await self._quotas.link.ask(*(ReadSlot(limit) for _, limit in watched))
        wanted = [(lim.scope, lim.slot.start_s, lim.slot.end_s) for _, lim in watched if lim.slot]
        rows = await self._ledger.used(wanted)
        compared = []
        for (window, limit), slot, sums in zip(watched, slots, rows, strict=True):
            assert isinstance(slot, SlotUse)
            if not slot.is_counted:
                del self._watched[window]
                continue
            drift = slot.used - sums.of(limit.metric)
            compared.append((window, limit, drift, slot.used, slot.held))
        return compared

    async def _mend(self, limit: Limit, drifts: list[int], used: int, held: int) -> bool:
        recent = drifts[-_ROUNDS_BEHIND:]
        seen: int | None
        if len(recent) == _ROUNDS_BEHIND and max(recent) < 0:
            missing, seen = -max(recent), None
        elif len(drifts) == _ROUNDS_AHEAD and len(set(drifts)) == 1 and drifts[0] > 0 and not held:
            missing, seen = -drifts[0], used
        else:
            return False
        [answer] = await self._quotas.link.ask(Repair(limit, seen, missing))
        if isinstance(answer, Done):
            self._metrics.quota_repairs.inc()
            logger.warning(
                "%s of %s was off by %d and is mended", limit.metric.value, limit.scope, -missing
            )
        return True


def _window(limit: Limit) -> _Window:
    assert limit.slot is not None, "only windows are compared"
    return limit.scope, limit.metric, limit.window, limit.slot.start_s
