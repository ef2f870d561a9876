"""How much of the KV cache each running row holds and will, as arrays by slot.

Sizes are in tokens and a row's own: what it shares with others by a prefix hit is not counted.
A row grows by one with each token that it draws, up to the length that it was expected to reach
when it was admitted.

Rows of lower bands hold what higher ones leave: they are sent back once one of those needs it. So
sizes are told apart by band.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduler.request import Band

_Sizes = NDArray[np.float64]


class KvGrowth:
    """Keep the sizes of up to `num_slots` running sequences, and what they are to grow by."""

    def __init__(self, num_slots: int) -> None:
        # Counts changes, so that what is derived from these sizes can be kept until the next.
        self.version = 0
        # One more than there are slots, for the row that is thought of besides.
        self._columns = np.zeros((3, num_slots + 1))
        self._own, self._growth, self._is_held = self._columns[:, :-1]
        # By slot, the place of the tenant whose row it is (`scheduler.running.holdings`).
        self._places = np.zeros(num_slots, dtype=np.intp)
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._columns[:] = 0.0
        self._bands = np.zeros(self._columns.shape[1], dtype=np.intp)
        self.changed()

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """Name the arrays that a compiled twin works on, which are never replaced."""
        return {"own": self._own, "growth": self._growth, "is_held": self._is_held}

    def admit(
        self,
        slot: int,
        own_tokens: int,
        growth_tokens: float,
        *,
        band: Band = Band.PRIORITY,
        place: int = 0,
    ) -> None:
        """Note what a row holds of its own, and by how much it is expected to grow.

        It goes for rows above its `band`: one that is not to be sent back stands in the highest.
        `place` is its tenant's, of which there are no more than slots.
        """
        self._bands[slot] = band
        self._places[slot] = place
        self._own[slot] = own_tokens
        self._growth[slot] = max(0.0, growth_tokens)
        self._is_held[slot] = 1.0
        self.changed()

    def advance(self, slots: NDArray[np.intp]) -> None:
        """Note that these rows have drawn one more token each."""
        # A slot may have been given back since the step was planned.
        is_held = self._is_held[slots]
        self._own[slots] += is_held
        self._growth[slots] -= is_held
        self.changed()

    def promote(self, slot: int, band: Band, place: int = 0) -> None:
        """Note that a row is of a higher band now, and its tenant's `place` there."""
        self._bands[slot] = band
        self._places[slot] = place
        self.changed()

    def release(self, slot: int) -> None:
        """Forget a row."""
        # It holds nothing in any band; in the highest nobody looks for rows below.
        self._bands[slot] = Band.PRIORITY
        self._is_held[slot] = self._own[slot] = self._growth[slot] = 0.0
        self.changed()

    def peak_tokens(self, new_tokens: float, new_growth: float, band: Band = Band.BATCH) -> float:
        """Predict the most that the rows and a new one will ever hold of their own, in tokens.

        Rows below the `band` of the new one are left out.
        A row leaves when it has grown to its expected length, and each row grows by a token a
        step until then, so only the moments before a row leaves can be the peak. Rows beyond
        their expected length count as about to leave.
        Source: LightLLM, `lightllm/server/router/req_queue` (Gong et al., "Past-Future
        Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025).
        """
        columns = self._columns
        columns[:2, -1] = new_tokens, new_growth
        is_below = self._bands > band
        if np.count_nonzero(is_below):
            columns = np.where(is_below, 0.0, columns)
        order = columns[1].argsort()[::-1]
        own, growth = columns[:2, order]
        # Who grows more stands before, free slots after those that grow.
        held = own.cumsum() + np.maximum(growth, 0.0) * np.arange(1, len(own) + 1)
        return float(held.max())

    def tokens_of(self, place: int) -> tuple[float, float]:
        """Sum what the rows of a tenant hold of their own, and what they are to grow by."""
        own, growth = self._by_place()
        return own.item(place), growth.item(place)

    def tokens_of_all(self, places: list[int]) -> float:
        """Sum both of several tenants."""
        own, growth = self._by_place()
        return float((own[places] + growth[places]).sum())

    @property
    def own_by_slot(self) -> NDArray[np.float64]:
        """Hold what the row in each slot holds of its own, 0 in a free one; not to be changed."""
        own: NDArray[np.float64] = self._own
        return own

    @property
    def own_tokens(self) -> float:
        """Sum what the rows hold of their own."""
        return sum(self._sum()[0])

    @property
    def growth_tokens(self) -> float:
        """Sum what the rows are expected to grow by."""
        return sum(self._sum()[1])

    def tokens_below(self, band: Band) -> tuple[float, float]:
        """Sum what rows below a band hold of their own, and what they are to grow by."""
        own, growth = self._sum()
        return sum(own[band + 1 :]), sum(growth[band + 1 :])

    def changed(self) -> None:
        """Note that sizes were changed, which a compiled twin does by itself."""
        self.version += 1
        self._sums: tuple[list[float], list[float]] | None = None
        self._of_places: tuple[_Sizes, _Sizes] | None = None

    def _by_place(self) -> tuple[_Sizes, _Sizes]:
        """Sum what rows hold, and are to grow by, for all tenants at once."""
        found = self._of_places
        if found is None:
            size = len(self._places)
            own: _Sizes = np.bincount(self._places, self._own, size).astype(np.float64, copy=False)
            growth: _Sizes = np.bincount(self._places, np.maximum(self._growth, 0.0), size).astype(
                np.float64, copy=False
            )
            found = self._of_places = own, growth
        return found

    def _sum(self) -> tuple[list[float], list[float]]:
        """Sum what rows hold, and are to grow by, by band."""
        if self._sums is None:
            bands, growth = self._bands[:-1], np.maximum(self._growth, 0.0)
            self._sums = (
                np.bincount(bands, self._own, len(Band)).tolist(),
                np.bincount(bands, growth, len(Band)).tolist(),
            )
        return self._sums
