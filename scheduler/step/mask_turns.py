"""Which of the rows that have a constraint decode in this step, by what their masks take.

A step ends when the last of its masks is made, and what one takes hangs on what its client wrote:
microseconds for a schema, milliseconds for a grammar that was made for that. So the masks of a step
may take about half of what steps take, beside which they are made, and no more. What steps waited
for masks is not of it: on a machine that has other work, masks take longer than they compute, and
would earn themselves more with each step that they lengthen.

Who asks for more waits in turn: the tenants have parts of it by their weights, what one leaves is
the others', and the rows of a tenant that has less than it asks for run in turn
(`scheduler.running.rotation`, which is deficit round robin: Shreedhar and Varghese 1996).

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
from scheduler.order import FairTree, Node
from scheduler.running import Rotation, RunningSet, Slots
from scheduler.sequence import KEY, MEMBER
from scheduler.step.draft import Step
from scheduler.step.water_level import Seconds, held_to, level_for

# Of the time of a step: with less than all of it, masks that take so much do not lengthen the steps
# that they are allowed a part of.
_PART = 0.5
_LEAST_S = 0.002
# To learn takes longer than some masks of a schema: while no more than a part of what there is was
# asked for and had, it is from one step of some.
_LITTLE, _EVERY = 0.25, 8
# What is remembered of what went before, with each of these steps of a row and of a tenant.
_KEPT_OF_ROW, _KEPT_OF_TENANT, _KEPT_OF_STEPS = 0.5, 0.95, 0.95
_LEAST_COST_S, _UNKNOWN_COST_S = 1e-9, 5e-4
_NOBODY = -1


class MaskTurns:
    """Choose among the rows that have constraints; see the module."""

    def __init__(self, running: RunningSet, tree: FairTree) -> None:
        self._running = running
        self._tree = tree
        self._rotation, self._batch_rotation = Rotation(), Rotation()
        # Of all slots: steps that are smaller for a while, for want of memory, have them again.
        num_slots = len(running.decode_rows.epochs)
        # By slot, and what of the slot's hands (`DecodingRows.epochs`) that is known for.
        self._cost_s = np.zeros(num_slots)
        self._epochs = np.full(num_slots, _NOBODY, dtype=np.intc)
        # Whose the slots were that decode in the step that is noted.
        self._hands = np.full(num_slots, _NOBODY, dtype=np.intc)
        # By the entries of tenants; not a number where nothing was measured.
        self._dearest_s = np.full(64, np.nan)
        self._step_s = 0.0
        self._left_s = self._little_s = 0.0
        self._asks_little = False
        tree.followers.add(self)

    def begin(self) -> None:
        """Begin a step."""
        self._left_s = max(_LEAST_S, _PART * self._step_s)
        self._little_s = _LITTLE * self._left_s
        self._asks_little = True

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
        waited_s = 0.0 if result.masks is None else result.masks.waited_s
        self._step_s += (1.0 - _KEPT_OF_STEPS) * (result.step_s - waited_s - self._step_s)
        if result.masks is None:
            return
        is_little = self._asks_little and result.masks.all_s <= self._little_s
        if is_little and step.plan.step_id % _EVERY:
            return
        slots, took_s = result.masks.slots, result.masks.took_s
        rows = self._running.decode_rows
        # What a request begins with is computed before it is here, and tells nothing; nor does
        # what a slot's last hands had in this step.
        decodes = step.sampling[: len(step.decodes)]
        self._hands[decodes] = step.epochs[: len(decodes)]
        is_same = self._hands[slots] == rows.epochs[slots]
        if not is_same.all():
            slots, took_s = slots[is_same], took_s[is_same]
        epochs = rows.epochs[slots]
        before_s = np.where(self._epochs[slots] == epochs, self._cost_s[slots], took_s)
        cost_s = took_s + _KEPT_OF_ROW * (before_s - took_s)
        self._cost_s[slots] = np.maximum(cost_s, _LEAST_COST_S)
        self._epochs[slots] = epochs
        tenants = rows.accounts[slots, MEMBER]
        self._make_room(tenants)
        # Once a tenant, however many of its rows are named.
        self._dearest_s[tenants] *= _KEPT_OF_TENANT
        np.fmax.at(self._dearest_s, tenants, took_s)

    def swept(self, node: Node) -> None:
        """Forget a tenant, or an organisation, whose entry may be another's next."""
        if node.entry < len(self._dearest_s):
            self._dearest_s[node.entry] = np.nan
        self._rotation.forget(node.entry)
        self._batch_rotation.forget(node.entry)

    def _choose(self, slots: Slots, rotation: Rotation, *, is_alone: bool) -> Slots:
        rows = self._running.decode_rows
        is_constrained = rows.is_constrained[slots]
        # Counted, as this and the next are in every step: `any` takes five times as long.
        num_asking = np.count_nonzero(is_constrained)
        if not num_asking:
            return slots
        asking = slots if num_asking == len(slots) else slots[is_constrained]
        costs_s = self._price(asking)
        asked_s = float(np.add.reduce(costs_s))
        self._asks_little &= asked_s <= self._little_s
        if asked_s <= self._left_s:
            self._left_s -= asked_s
            rotation.clear()
            return slots
        at = self._in_turn(asking, costs_s, rotation)
        if not len(at) and is_alone and num_asking == len(slots):
            at = np.array([rows.turns[asking].argmin()])
        self._left_s -= float(costs_s[at].sum())
        runs = ~is_constrained
        runs[np.flatnonzero(is_constrained)[at]] = True
        chosen: Slots = slots[runs]
        return chosen

    def _in_turn(self, asking: Slots, costs_s: Seconds, rotation: Rotation) -> NDArray[np.intp]:
        """Return the places of those that run, where not all can."""
        rows = self._running.decode_rows
        tenants = rows.accounts[asking, MEMBER]
        asked_s: Seconds = np.bincount(tenants, weights=costs_s).astype(np.float64)
        entries = np.flatnonzero(asked_s)
        weights = self._tree.weights_of(entries)
        level = level_for(asked_s[entries], weights, max(0.0, self._left_s))
        parts_s = np.zeros(len(asked_s))
        parts_s[entries] = held_to(asked_s[entries], weights, level)
        is_held = parts_s < asked_s
        held = np.flatnonzero(is_held[tenants])
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

    def _price(self, asking: Slots) -> Seconds:
        rows = self._running.decode_rows
        costs_s: Seconds = self._cost_s[asking]
        is_known = self._epochs[asking] == rows.epochs[asking]
        if np.count_nonzero(is_known) < len(asking):
            tenants = rows.accounts[asking[~is_known], MEMBER]
            self._make_room(tenants)
            dearest_s = self._dearest_s[tenants]
            dearest_s[np.isnan(dearest_s)] = _UNKNOWN_COST_S
            costs_s[~is_known] = np.maximum(dearest_s, _LEAST_COST_S)
        return costs_s

    def _make_room(self, tenants: NDArray[np.intp]) -> None:
        size = int(tenants.max(initial=0)) + 1
        if size > len(self._dearest_s):
            grown = np.full(2 * size, np.nan)
            grown[: len(self._dearest_s)] = self._dearest_s
            self._dearest_s = grown
