"""What the composer must know of all running rows at once, as arrays by slot.

A step has hundreds of rows and every one of them draws a token, so what changes with each token
is kept in arrays and changed in a few operations for all of them: when a row's next token is due,
and how much of the KV cache it holds and is expected to hold in the end.

Deadlines. With a promise per token, token k is due `k * tpot_s` after the first one was due or
came, whichever is later; with a promise per gap, `max_gap_s` after the last. What is not promised
is due at infinity.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from scheduler.sequence import Sequence

_NEVER = math.inf


class Rows:
    """Keep the deadlines and sizes of up to `num_slots` running sequences."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        num_slots = self._num_slots
        self._due_s = np.full(num_slots, _NEVER)
        self._tpot_s = np.full(num_slots, _NEVER)
        self._gap_s = np.full(num_slots, _NEVER)
        # Deadlines without the gap, which starts anew with each token.
        self._paced_s = np.full(num_slots, _NEVER)
        self._num_promised = 0
        self._is_promised = [False] * num_slots
        # In tokens; what a row shares with others by a prefix hit is not its own.
        self._own = np.zeros(num_slots)
        self._growth = np.zeros(num_slots)
        self._is_held = np.zeros(num_slots)
        self._sums: tuple[float, float] | None = None

    @property
    def tightest_s(self) -> float:
        """Say when the first of all next tokens is due; infinity where none is promised."""
        return float(self._due_s.min()) if self._num_promised else _NEVER

    @property
    def shortest_gap_s(self) -> float:
        """Say the shortest gap that a decoding row was promised."""
        return float(self._gap_s.min()) if self._num_promised else _NEVER

    def admit(self, sequence: Sequence, num_found: int, expected_len: float) -> None:
        """Note what a sequence holds beside a hit of `num_found` tokens and is expected to."""
        slot = sequence.slot
        self._own[slot] = sequence.num_tokens - num_found
        self._growth[slot] = max(0.0, expected_len - sequence.num_tokens)
        self._is_held[slot] = 1.0
        self._sums = None

    def start(self, sequence: Sequence, now: float) -> None:
        """Note that a row's first token has landed, or the first after a preemption."""
        slot, slo = sequence.slot, sequence.request.slo
        if sequence.first_token_s is None:
            sequence.first_token_s = now
        if slo.tpot_s is None and slo.max_gap_s is None:
            return
        self._is_promised[slot] = True
        self._num_promised += 1
        tpot_s = _NEVER if slo.tpot_s is None else slo.tpot_s
        begin_s = sequence.first_token_s
        if slo.ttft_s is not None:
            begin_s = max(begin_s, sequence.request.arrival_s + slo.ttft_s)
        self._tpot_s[slot] = tpot_s
        self._gap_s[slot] = gap_s = _NEVER if slo.max_gap_s is None else slo.max_gap_s
        self._paced_s[slot] = paced_s = begin_s + tpot_s * max(1, sequence.num_output_tokens)
        self._due_s[slot] = min(paced_s, now + gap_s)

    def advance(self, slots: NDArray[np.intp], now: float) -> None:
        """Note that these rows have drawn one more token each."""
        # A slot may have been given back since the step was planned.
        is_held = self._is_held[slots]
        self._own[slots] += is_held
        self._growth[slots] -= is_held
        self._sums = None
        if self._num_promised:
            paced_s = self._paced_s[slots] + self._tpot_s[slots]
            self._paced_s[slots] = paced_s
            self._due_s[slots] = np.minimum(paced_s, self._gap_s[slots] + now)

    def release(self, slot: int) -> None:
        """Forget a row."""
        self._is_held[slot] = self._own[slot] = self._growth[slot] = 0.0
        self._sums = None
        if self._is_promised[slot]:
            self._is_promised[slot] = False
            self._num_promised -= 1
            self._due_s[slot] = self._gap_s[slot] = _NEVER
            self._paced_s[slot] = self._tpot_s[slot] = _NEVER

    def peak_tokens(self, new_tokens: float, new_growth: float) -> float:
        """Predict the most that the rows and a new one will ever hold of their own, in tokens.

        A row leaves when it has grown to its expected length, and each row grows by a token a
        step until then, so only the moments before a row leaves can be the peak. Rows beyond
        their expected length count as about to leave.
        Source: LightLLM, `lightllm/server/router/req_queue` (Gong et al., "Past-Future
        Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025).
        """
        own = np.append(self._own, new_tokens)
        growth = np.append(self._growth, new_growth)
        np.maximum(growth, 0.0, out=growth)
        order = np.argsort(-growth)
        num_growing = np.cumsum(np.append(self._is_held, 1.0)[order])
        held = np.cumsum(own[order]) + growth[order] * num_growing
        return float(held.max())

    @property
    def own_tokens(self) -> float:
        """Sum what the rows hold of their own."""
        return self._sum()[0]

    @property
    def growth_tokens(self) -> float:
        """Sum what the rows are expected to grow by."""
        return self._sum()[1]

    def _sum(self) -> tuple[float, float]:
        if self._sums is None:
            growth = np.maximum(self._growth, 0.0)
            self._sums = float(np.add.reduce(self._own)), float(np.add.reduce(growth))
        return self._sums
