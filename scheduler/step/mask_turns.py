"""Which of the rows that have a constraint decode in this step, by what their masks take.

A step ends when the last of its masks is made, and what one takes hangs on what its client wrote:
microseconds for a schema, milliseconds for a grammar that was made for that. So the masks of a step
may take about half of what steps take, beside which they are made, and no more. Who asks for more
waits in turn: the tenants have parts of it by their weights, what one leaves is the others', and
the rows of a tenant that has less than it asks for run in turn (`scheduler.running.rotation`, which
is deficit round robin: Shreedhar and Varghese 1996).

What a mask will take is guessed from those of the row before it. One that has had none is taken for
what the dearest of its tenant took lately, so that coming anew is no way around it; and where there
was none either for so much that few of them are tried at a time.

- Where nothing else would be computed one row runs, however dear.
- It is a wall for others and not a share: who has little to ask for is never held.
- A row that waits here may miss its own promise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.contract import StepResult
from scheduler.order import FairTree
from scheduler.running import Rotation, RunningSet, Slots
from scheduler.sequence import KEY, MEMBER
from scheduler.step.draft import Step
from scheduler.step.water_level import Seconds, held_to, level_for

# Of the time of a step: with less than all of it, masks that take so much do not lengthen the steps
# that they are allowed a part of.
_PART = 0.5
_LEAST_S = 0.002
# What is remembered of what went before, with each step of a row and of a tenant.
_KEPT_OF_ROW, _KEPT_OF_TENANT, _KEPT_OF_STEPS = 0.5, 0.95, 0.95
_LEAST_COST_S, _UNKNOWN_COST_S = 1e-9, 5e-4


class MaskTurns:
    """Choose among the rows that have constraints; see the module."""

    def __init__(self, num_slots: int, running: RunningSet, tree: FairTree) -> None:
        self._running = running
        self._tree = tree
        self._rotation, self._batch_rotation = Rotation(), Rotation()
        # By slot, and what of the slot's hands (`DecodingRows.epochs`) that is known for.
        self._cost_s = np.zeros(num_slots)
        self._epochs = np.full(num_slots, -1, dtype=np.intc)
        # By the entries of tenants; not a number where nothing was measured.
        self._dearest_s = np.full(64, np.nan)
        self._step_s = 0.0
        self._left_s = 0.0

    def begin(self) -> None:
        """Begin a step."""
        self._left_s = max(_LEAST_S, _PART * self._step_s)

    def choose(self, slots: Slots) -> Slots:
        """Return those of the online rows at `slots`, all of which may draw, that do."""
        return self._choose(slots, self._rotation, is_alone=True)

    def choose_batch(self, slots: Slots, *, is_alone: bool) -> Slots:
        """Return those of the batch band's rows that run in what the others leave.

        `is_alone`: nothing else is computed in the step.
        """
        return self._choose(slots, self._batch_rotation, is_alone=is_alone)

    def note(self, step: Step, result: StepResult) -> None:
        """Learn what a step took and its masks did, before its rows are taken in."""
        self._step_s += (1.0 - _KEPT_OF_STEPS) * (result.step_s - self._step_s)
        if not result.mask_s:
            return
        rows = self._running.decode_rows
        # What a request begins with is computed before it is here, and tells nothing.
        sampled = step.sampling[: len(step.decodes)]
        sampled = sampled[step.epochs[: len(sampled)] == rows.epochs[sampled]]
        asked_s = np.array([result.mask_s.get(slot, np.nan) for slot in sampled.tolist()])
        is_masked = ~np.isnan(asked_s)
        slots, took_s = sampled[is_masked], asked_s[is_masked]
        if not len(slots):
            return
        is_known = self._epochs[slots] == rows.epochs[slots]
        before_s = np.where(is_known, self._cost_s[slots], took_s)
        self._cost_s[slots] = took_s + _KEPT_OF_ROW * (before_s - took_s)
        self._epochs[slots] = rows.epochs[slots]
        tenants = rows.accounts[slots, MEMBER]
        self._make_room(int(tenants.max()) + 1)
        self._dearest_s[np.unique(tenants)] *= _KEPT_OF_TENANT
        np.fmax.at(self._dearest_s, tenants, took_s)

    def _choose(self, slots: Slots, rotation: Rotation, *, is_alone: bool) -> Slots:
        rows = self._running.decode_rows
        is_constrained = rows.is_constrained[slots]
        if not is_constrained.any():
            return slots
        asking = slots[is_constrained]
        tenants = rows.accounts[asking, MEMBER]
        costs_s = self._price(asking, tenants)
        asked_s = float(costs_s.sum())
        if asked_s <= self._left_s:
            self._left_s -= asked_s
            rotation.clear()
            return slots
        at = self._in_turn(asking, tenants, costs_s, rotation)
        if not len(at) and is_alone and len(asking) == len(slots):
            at = np.array([rows.turns[asking].argmin()])
        self._left_s -= float(costs_s[at].sum())
        runs = ~is_constrained
        runs[np.flatnonzero(is_constrained)[at]] = True
        chosen: Slots = slots[runs]
        return chosen

    def _in_turn(
        self,
        asking: Slots,
        tenants: NDArray[np.intp],
        costs_s: Seconds,
        rotation: Rotation,
    ) -> NDArray[np.intp]:
        """Return the places of those that run, where not all can."""
        asked_s: Seconds = np.bincount(tenants, weights=costs_s).astype(np.float64)
        entries = np.flatnonzero(asked_s)
        weights = self._tree.weights_of(entries)
        level = level_for(asked_s[entries], weights, max(0.0, self._left_s))
        parts_s = np.zeros(len(asked_s))
        parts_s[entries] = held_to(asked_s[entries], weights, level)
        is_held = parts_s < asked_s
        held = np.flatnonzero(is_held[tenants])
        rows = self._running.decode_rows
        picked = rotation.pick(
            tenants[held],
            rows.accounts[asking[held], KEY],
            costs_s[held],
            rows.turns[asking[held]],
            np.zeros(len(held), dtype=bool),
            parts_s[tenants[held]],
        )
        runs: Slots = np.concatenate((np.flatnonzero(~is_held[tenants]), held[picked]))
        return runs

    def _price(self, asking: Slots, tenants: NDArray[np.intp]) -> Seconds:
        self._make_room(int(tenants.max()) + 1)
        is_known = self._epochs[asking] == self._running.decode_rows.epochs[asking]
        dearest_s = self._dearest_s[tenants]
        dearest_s[np.isnan(dearest_s)] = _UNKNOWN_COST_S
        costs_s = np.where(is_known, self._cost_s[asking], dearest_s)
        priced_s: Seconds = np.maximum(costs_s, _LEAST_COST_S)
        return priced_s

    def _make_room(self, size: int) -> None:
        if size > len(self._dearest_s):
            grown = np.full(2 * size, np.nan)
            grown[: len(self._dearest_s)] = self._dearest_s
            self._dearest_s = grown
