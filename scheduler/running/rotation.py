"""Which rows of tenants that have a part of a step run in it, and which sit out.

In turn, as in a queue: who runs goes to its end. A tenant's keys take turns first, so that a key
has no more of its tenant's part for having more rows, and then the rows of a key. So all of them
sit out as often, and one that runs in two steps of three sits out each third one, and not ten after
twenty. What a tenant's part is short of a row's cost, or beyond it, counts in the next step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduler.running.decode_rows import Slots

Seconds = NDArray[np.float64]

# Spreads the first steps of tenants that begin to be held at once.
_GOLDEN = 0.618
# A turn is the number of a step and a place in it; rows are sorted by what is left of it.
PLACE_BITS = 16
_TURN_BITS = PLACE_BITS + 6
_SORTED_BITS = 14


class Rotation:
    """Remember what tenants are ahead of their parts or behind; see the module."""

    def __init__(self) -> None:
        # By the entries of tenants; not a number where one is not held.
        self._credit_s = np.full(64, np.nan)
        self._held: Slots = np.empty(0, dtype=np.intp)

    def clear(self) -> None:
        """Forget those who were held: all rows run."""
        if len(self._held):
            self._credit_s[self._held] = np.nan
            self._held = self._held[:0]

    def forget(self, tenant: int) -> None:
        """Forget an entry, which may be another tenant's next."""
        if tenant < len(self._credit_s):
            self._credit_s[tenant] = np.nan

    def pick(
        self,
        tenants: NDArray[np.intp],
        keys: NDArray[np.intp],
        costs_s: Seconds,
        turns: NDArray[np.int64],
        must: NDArray[np.bool_],
        parts_s: Seconds,
    ) -> Slots:
        """Choose the rows of tenants that are held that run, the first in turn first.

        Those that `must` always do.
        Args: columns by row, [rows]: the entries of its tenant and key, what it costs, its last
        turn, and what its tenant has of this step.
        Returns: their indices.
        """
        order = _in_turn(tenants, keys, turns, must)
        starts, sizes = _groups(tenants[order])
        costs_s, must = costs_s[order], must[order]
        before = costs_s.cumsum() - costs_s
        before -= np.repeat(before[starts], sizes)
        held = tenants[order[starts]]
        due_s = self._credit_of(held, costs_s[starts]) + parts_s[order[starts]]
        runs: NDArray[np.bool_] = must | (before < np.repeat(due_s, sizes))
        # One after the other, as a compiled twin adds them.
        tenant_of_row = np.repeat(np.arange(len(starts)), sizes)
        spent_s = np.bincount(tenant_of_row, weights=costs_s * runs)
        all_s = np.bincount(tenant_of_row, weights=costs_s)
        self.clear()
        # Who has more than its rows can use has it no longer, and debts are of a step at most.
        self._credit_s[held] = np.clip(due_s - spent_s, -all_s, costs_s[starts])
        self._held = held
        picked: Slots = order[runs]
        return picked

    @property
    def credit_s(self) -> Seconds:
        """Hold what is left of earlier parts, by entry, not a number where one is not held."""
        return self._credit_s

    @property
    def held(self) -> Slots:
        """List the entries of those who are held."""
        return self._held

    def note(self, held: Slots) -> None:
        """Note who is held now, whose credits are known."""
        self._held = held

    def make_room(self, size: int) -> None:
        """Have places for so many entries."""
        if size > len(self._credit_s):
            grown = np.full(2 * size, np.nan)
            grown[: len(self._credit_s)] = self._credit_s
            self._credit_s = grown

    def _credit_of(self, tenants: NDArray[np.intp], row_s: Seconds) -> Seconds:
        """Look up what is left of earlier parts; who is new begins up to a row behind."""
        self.make_room(int(tenants[-1]) + 1)
        credit_s: Seconds = self._credit_s[tenants]
        is_new = np.isnan(credit_s)
        if is_new.any():
            credit_s[is_new] = (-(tenants[is_new] * _GOLDEN) % 1.0 - 1.0) * row_s[is_new]
        return credit_s


def _in_turn(
    tenants: NDArray[np.intp],
    keys: NDArray[np.intp],
    turns: NDArray[np.int64],
    must: NDArray[np.bool_],
) -> Slots:
    """Sort rows by tenant, those that must run first, then by turns of keys."""
    newest = int(turns.max())
    turns = np.maximum(turns - newest + (1 << _TURN_BITS) - 1, 0)
    order = np.argsort((((keys << 1) + ~must) << _TURN_BITS) + turns, kind="stable")
    starts, sizes = _groups(keys[order])
    place = np.arange(len(order)) - np.repeat(starts, sizes)
    # When a key last ran is when the latest of its rows did.
    key_turns = np.repeat(np.maximum.reduceat(turns[order], starts), sizes)
    late = (tenants[order] << 1) + ~must[order]
    found: Slots = order[
        np.argsort((((late << _SORTED_BITS) + place) << _TURN_BITS) + key_turns, kind="stable")
    ]
    return found


def _groups(column: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Find where equal neighbours begin, and how many there are."""
    # `diff` would do, but this runs twice a step, and that takes six times as long.
    begins = np.empty(len(column), dtype=bool)
    begins[0] = True
    np.not_equal(column[1:], column[:-1], out=begins[1:])
    starts = begins.nonzero()[0]
    sizes = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=sizes[:-1])
    sizes[-1] = len(column) - starts[-1]
    return starts, sizes
