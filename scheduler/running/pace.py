"""When the next token of each running row is due, as arrays by slot.

A step has hundreds of rows and every one of them draws a token, so what changes with each token
is kept in arrays and changed in a few operations for all of them. What the times mean is said in
`scheduler.order.deadlines`: a row starts with the one by its pace, and each token moves that by
`tpot_s`; the gap starts anew with each token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduler.request import Slo

_NEVER = np.inf


class Pace:
    """Keep when the next tokens of up to `num_slots` running sequences are due."""

    def __init__(self, num_slots: int) -> None:
        self._all = np.full((4, num_slots), _NEVER)
        # Deadlines without the gap, which starts anew with each token, in the last.
        self._due_s, self._tpot_s, self._gap_s, self._paced_s = self._all
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._all[:] = _NEVER
        self._num_promised = 0
        # Also where the first token is in flight, and nothing is due yet.
        self._has_promise = np.zeros(self._all.shape[1], dtype=bool)

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """Name the arrays that a compiled twin works on, which are never replaced."""
        return {
            "due_s": self._due_s,
            "tpot_s": self._tpot_s,
            "gap_s": self._gap_s,
            "paced_s": self._paced_s,
        }

    @property
    def has_promises(self) -> bool:
        """Tell whether any row was promised anything, be it from a token in flight on."""
        return self._num_promised > 0

    @property
    def tightest_s(self) -> float:
        """Say when the first of all next tokens is due; infinity where none is promised."""
        return float(self._due_s.min()) if self._num_promised else _NEVER

    @property
    def shortest_tpot_s(self) -> float:
        """Say the tightest pace that a decoding row was promised."""
        return float(self._tpot_s.min()) if self._num_promised else _NEVER

    @property
    def shortest_gap_s(self) -> float:
        """Say the shortest gap that a decoding row was promised."""
        return float(self._gap_s.min()) if self._num_promised else _NEVER

    def due_s(self, slots: NDArray[np.intp]) -> NDArray[np.float64]:
        """Say when the next token of each of these rows is due; infinity where none is promised."""
        return self._due_s[slots]

    def are_promised(self, slots: NDArray[np.intp]) -> bool:
        """Tell whether each of these rows was promised when its tokens come, due yet or not."""
        return bool(self._has_promise[slots].all())

    def has_promise(self, slots: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Tell which of these rows were promised when their tokens come."""
        found: NDArray[np.bool_] = self._has_promise[slots]
        return found

    def join(self, slot: int, slo: Slo) -> None:
        """Note that a row decodes, the first token of which is in flight.

        The step after that one is no longer than it was promised already, though nothing is due.
        """
        if self._has_promise[slot] or not slo.is_paced:
            return
        self._has_promise[slot] = True
        self._num_promised += 1
        self._tpot_s[slot] = _NEVER if slo.tpot_s is None else slo.tpot_s
        self._gap_s[slot] = _NEVER if slo.max_gap_s is None else slo.max_gap_s

    def start(self, slot: int, slo: Slo, paced_s: float, now: float) -> None:
        """Note that a row's first token has landed, or the first after a preemption.

        By its pace the next one is due at `paced_s`.
        """
        self.join(slot, slo)
        if self._has_promise[slot]:
            self._paced_s[slot] = paced_s
            self._due_s[slot] = min(paced_s, now + self._gap_s[slot])

    def advance(self, slots: NDArray[np.intp], now: float) -> None:
        """Note that these rows have drawn one more token each."""
        if self._num_promised:
            paced_s = self._paced_s[slots] + self._tpot_s[slots]
            self._paced_s[slots] = paced_s
            self._due_s[slots] = np.minimum(paced_s, self._gap_s[slots] + now)

    def release(self, slot: int) -> None:
        """Forget a row."""
        if self._has_promise[slot]:
            self._has_promise[slot] = False
            self._num_promised -= 1
            self._due_s[slot] = self._gap_s[slot] = _NEVER
            self._paced_s[slot] = self._tpot_s[slot] = _NEVER
