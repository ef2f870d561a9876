"""How much of the KV cache each running row holds and will, as arrays by slot.

Sizes are in tokens and a row's own: what it shares with others by a prefix hit is not counted.
A row grows by one with each token that it draws, up to the length that it was expected to reach
when it was admitted.

Rows of the batch band hold what others leave: they go as soon as one of those needs it. So their
sizes are told apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class KvGrowth:
    """Keep the sizes of up to `num_slots` running sequences, and what they are to grow by."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        # Counts changes, so that what is derived from these sizes can be kept until the next.
        self.version = 0
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        num_slots = self._num_slots
        self._own = np.zeros(num_slots)
        self._growth = np.zeros(num_slots)
        self._is_held = np.zeros(num_slots)
        self._is_batch = np.zeros(num_slots, dtype=bool)
        self._changed()

    def admit(
        self, slot: int, own_tokens: int, growth_tokens: float, *, is_batch: bool = False
    ) -> None:
        """Note what a row holds of its own, and by how much it is expected to grow."""
        self._is_batch[slot] = is_batch
        self._own[slot] = own_tokens
        self._growth[slot] = max(0.0, growth_tokens)
        self._is_held[slot] = 1.0
        self._changed()

    def advance(self, slots: NDArray[np.intp]) -> None:
        """Note that these rows have drawn one more token each."""
        # A slot may have been given back since the step was planned.
        is_held = self._is_held[slots]
        self._own[slots] += is_held
        self._growth[slots] -= is_held
        self._changed()

    def promote(self, slot: int) -> None:
        """Note that a row is not of the batch band any more."""
        self._is_batch[slot] = False
        self._changed()

    def release(self, slot: int) -> None:
        """Forget a row."""
        self._is_batch[slot] = False
        self._is_held[slot] = self._own[slot] = self._growth[slot] = 0.0
        self._changed()

    def peak_tokens(
        self, new_tokens: float, new_growth: float, *, with_batch: bool = True
    ) -> float:
        """Predict the most that the rows and a new one will ever hold of their own, in tokens.

        A row leaves when it has grown to its expected length, and each row grows by a token a
        step until then, so only the moments before a row leaves can be the peak. Rows beyond
        their expected length count as about to leave.
        Source: LightLLM, `lightllm/server/router/req_queue` (Gong et al., "Past-Future
        Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025).
        """
        counts = self._is_held
        own, growth = self._own, self._growth
        if not with_batch and self._is_batch.any():
            counts, own, growth = (np.where(self._is_batch, 0.0, a) for a in (counts, own, growth))
        own = np.append(own, new_tokens)
        growth = np.append(growth, new_growth)
        np.maximum(growth, 0.0, out=growth)
        order = np.argsort(-growth)
        num_growing = np.cumsum(np.append(counts, 1.0)[order])
        held = np.cumsum(own[order]) + growth[order] * num_growing
        return float(held.max())

    def tokens_of(self, slots: list[int]) -> tuple[float, float]:
        """Sum what these rows hold of their own, and what they are expected to grow by."""
        return float(self._own[slots].sum()), float(np.maximum(self._growth[slots], 0.0).sum())

    @property
    def own_by_slot(self) -> NDArray[np.float64]:
        """Hold what the row in each slot holds of its own, 0 in a free one; not to be changed."""
        return self._own

    @property
    def own_tokens(self) -> float:
        """Sum what the rows hold of their own."""
        return self._sum()[0]

    @property
    def growth_tokens(self) -> float:
        """Sum what the rows are expected to grow by."""
        return self._sum()[1]

    @property
    def batch_tokens(self) -> tuple[float, float]:
        """Sum what rows of the batch band hold of their own, and what they are to grow by."""
        return self._sum()[2:]

    def _changed(self) -> None:
        self.version += 1
        self._sums: tuple[float, float, float, float] | None = None

    def _sum(self) -> tuple[float, float, float, float]:
        if self._sums is None:
            growth = np.maximum(self._growth, 0.0)
            of_batch = 0.0, 0.0
            if self._is_batch.any():
                of_batch = (
                    float(self._own[self._is_batch].sum()),
                    float(growth[self._is_batch].sum()),
                )
            own, grown = float(np.add.reduce(self._own)), float(np.add.reduce(growth))
            self._sums = own, grown, *of_batch
        return self._sums
