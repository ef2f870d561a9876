"""Items on their way back into the queue: together, as one refusal seldom comes alone.

Their leases are held until they are there. Where the database is away they wait for it here; should
this process end before, their leases pass.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

from gateway.background import Background
from gateway.domain.batch import ItemRun
from gateway.ports import BatchQueue
from gateway.services.batches.worker_ports import HoldsLeases

_RETRY_S: Final = 1.0
# What comes back within such a part of a second comes back at once.
_GRAIN_S: Final = 0.5


class Returns:
    """Give items back; on the event loop alone."""

    def __init__(self, queue: BatchQueue, leases: HoldsLeases) -> None:
        self._queue = queue
        self._leases = leases
        self._waiting: dict[tuple[bool, int], set[ItemRun]] = defaultdict(set)
        self._came = asyncio.Event()

    def running(self) -> Background:
        """Give back in the background while the block runs."""
        return Background(
            "giving items back", self.flush, interval_s=None, wake=self._came, retry_s=(_RETRY_S,)
        )

    def add(self, run: ItemRun, *, is_unharmed: bool, after_s: float) -> None:
        """Give an item back soon, to be handed out after a while from then."""
        self._waiting[is_unharmed, round(after_s / _GRAIN_S)].add(run)
        self._came.set()

    async def flush(self) -> None:
        """Give back what waits. Raises: `StoreUnavailable`; it waits on."""
        while self._waiting:
            (is_unharmed, grains), runs = next(iter(self._waiting.items()))
            given = frozenset(runs)
            await self._queue.give_back(given, is_unharmed=is_unharmed, after_s=grains * _GRAIN_S)
            runs -= given
            if not runs:
                self._waiting.pop((is_unharmed, grains), None)
            self._leases.let_go(given)
