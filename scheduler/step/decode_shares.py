"""Which of the rows that may decode do so in this step; the others sit out and keep what they hold.

All of them would give whoever has more requests more of the machine, as soon as all requests fit.
So rows sit out of tenants that have more of a step's time than others of the same weight, by what
the step model says that a row costs (`scheduler.step.row_parts`), and run in turn
(`scheduler.running.rotation`). What a tenant's prompts cost lately counts as its rows do.

What is held to is the present, not the tree's counters: those level who begins to wait with who
left the queue last, and where all fit everybody begins to wait all the time. Nobody gets less for
what it had while others wanted nothing.

- A tenant of an organisation has no share of its own: all rows of the organisation count together,
  and run in turn by key.
- A tenant that had a prompt lately and has no row will soon send another, which waits for the step
  under way and is in the next one. If it sends little beside what others have, these sit out for
  it as they would for a row of it.
- Where all rows were promised a pace, or gaps, none sits out for shares: faster is not better then.
- Promises come before shares. A row runs that would be late if it sat out, and where a step with
  all would end too late for a row that can be in time, others sit out for it.
- With two steps in flight a row that is in neither waits for the end of the one that runs as well,
  and a row whose first token is in flight is promised its second though no time is set for that.
- A row sits out `MAX_STEPS_OUT` steps in succession at most.
- What a row costs cannot be told from what any step does while all steps are alike, and then the
  model that began as a guess says either. So where a tenant might be held, a few steps now and then
  have a quarter of the rows that run, or four times as many where they are few. The first of them
  pay for what the steps before drew, the last ones show what steps of that size take.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.step_cost import StepFeatures
from scheduler.config import SchedulerConfig
from scheduler.learn import StepModel
from scheduler.order import FairTree, Node
from scheduler.request import Band
from scheduler.running import PLACE_BITS, Rotation, RunningSet, Slots
from scheduler.sequence import KEY, MEMBER
from scheduler.step.budget import LEAST_TOKENS
from scheduler.step.draft import Step
from scheduler.step.recent_prefills import FEW, RecentPrefills
from scheduler.step.row_parts import RowParts, TenantRows
from scheduler.step.water_level import Seconds, least_work_s

MAX_STEPS_OUT = 31
# Parts are found anew after so many steps, or where a promise is tight or an eighth of rows is new.
_NUM_STEPS_KEPT = 4
# A step that a row sits out and the next, which it is in; one is to spare.
_NUM_STEPS_AHEAD = 3
# Of a tenant's rows: less is not worth a turn.
_LEAST_HELD = 0.05
# Steps of a sample, which has this part of the rows of others; and those between two, which are
# twice as many each time. Where steps cost the same with a quarter of the rows, the last of these
# take 0.9 % of the throughput.
_NUM_SAMPLED_STEPS = 6
_SAMPLED_PART = 4
_LEAST_BETWEEN, _MOST_BETWEEN = 32, 512


class DecodeShares:
    """Choose who decodes; see the module.

    After `choose`, `kept_s` is how much earlier than the next promised token the step should end,
    for those that sit out and are due after it.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        depth: int,
        running: RunningSet,
        tree: FairTree,
        step_model: StepModel,
    ) -> None:
        self.kept_s = 0.0
        self._max_loss = config.fairness.max_throughput_loss
        self._composer = config.composer
        self._runs_ahead = depth > 1
        self._running = running
        self._tree = tree
        self._has_shares = tree.has_shares
        self._step_model = step_model
        self.prefills = RecentPrefills(step_model)
        self._parts = RowParts(config.fairness, running, self.prefills)
        self._rotation = Rotation()
        # What tenants that are held have of a step, by entry, or None where nobody is.
        self._part_of: Seconds | None = None
        self._found_at_step = -_NUM_STEPS_KEPT
        self._found_for_rows = 0
        # Whether a tenant has more than others of its weight, be it held or not.
        self._is_uneven = False
        # So that the first one is as after a rest.
        self._next_sample = -_MOST_BETWEEN - 1
        self._sampled_after = _LEAST_BETWEEN
        self._is_sample = False
        # Of the sample under way: steps to come, and rows.
        self._num_steps_left = self._num_sampled = 0
        # In the last step that was no sample.
        self._num_chosen = 0
        tree.followers.add(self)

    def choose(self, slots: Slots, now: float) -> Slots:
        """Return those of the rows at `slots`, all of which may draw, that do."""
        self.kept_s = 0.0
        self._is_sample = False
        chosen = self._choose(slots, now)
        if not self._is_sample:
            self._num_chosen = len(chosen)
        if chosen is slots:
            self._running.decode_rows.turns[slots] = self._running.num_steps << PLACE_BITS
        if self._runs_ahead and self._running.pace.has_promises:
            chosen = self._beside_step_in_flight(slots, chosen, now)
        return chosen

    def _beside_step_in_flight(self, slots: Slots, chosen: Slots, now: float) -> Slots:
        """Let rows run as well whose promises begin with the token that is in flight.

        Where a promised row is not in the step that runs, that one's time is kept for it: what is
        due next of all others is in that step, and not in this one.
        """
        rows, pace = self._running.decode_rows, self._running.pace
        is_promised = pace.has_promise(slots)
        due_s = pace.due_s(slots)
        begins = slots[is_promised & (due_s == np.inf)]
        if len(begins) and len(chosen) < len(slots):
            rows.turns[begins] = self._running.num_steps << PLACE_BITS
            chosen = np.union1d(chosen, begins)
        is_out = rows.num_tokens[slots] == rows.num_known[slots]
        if self.kept_s or (is_out & (due_s < np.inf)).any():
            times = self._running.in_flight_times
            self.kept_s += times.left_s(now, stretch=self._step_model.margin)
        return chosen

    def _choose(self, slots: Slots, now: float) -> Slots:
        if not self._max_loss or len(slots) < 2 or not self._step_model.is_calibrated:
            return slots
        fixed_s, row_s, context_s = self._step_model.decode_costs(len(slots))
        num_tokens = self._running.decode_rows.num_tokens[slots]
        step_s = fixed_s + row_s * len(slots) + context_s * int(np.add.reduce(num_tokens))
        is_tight = self._running.pace.tightest_s - now < self._step_model.margin * step_s
        is_known = self._running.num_steps - self._found_at_step < _NUM_STEPS_KEPT
        is_known &= 8 * abs(len(slots) - self._found_for_rows) <= len(slots)
        if self._is_uneven and not is_tight and self._running.num_steps >= self._next_sample:
            return self._sample(slots, now)
        if is_known and not is_tight and self._part_of is None:
            return slots
        if is_known and not is_tight:
            picked = self._pick_compiled(slots, (row_s, context_s), now)
            if picked is not None:
                return picked
        costs_s = np.maximum(row_s + context_s * num_tokens, 1e-9)
        tenants = self._running.decode_rows.accounts[slots, MEMBER]
        if is_tight or not is_known:
            most_s = self._most_s(slots, costs_s, fixed_s, now) if is_tight else np.inf
            self._part_of = self._find_parts(slots, tenants, costs_s, fixed_s, most_s, now)
            # What a tight promise takes is for this step alone.
            self._found_at_step = self._running.num_steps - _NUM_STEPS_KEPT * is_tight
            self._found_for_rows = len(slots)
            if self._part_of is None:
                self._rotation.clear()
                return slots
            picked = self._pick_compiled(slots, (row_s, context_s), now)
            if picked is not None:
                return picked
        return self._pick(slots, tenants, costs_s, now)

    def note(self, step: Step, now: float, *, is_behind: bool) -> None:
        """Learn what prompts a step computes, whose, and whether there are more than that."""
        if self._max_loss and step.slices:
            self.prefills.note(step, self._running.num_steps, now, is_behind=is_behind)

    def swept(self, node: Node) -> None:
        """Forget a tenant, or an organisation, whose entry may be another's next."""
        self.prefills.forget(node.entry)
        self._rotation.forget(node.entry)
        if self._part_of is not None and node.entry < len(self._part_of):
            self._part_of[node.entry] = np.inf

    def _find_parts(
        self,
        slots: Slots,
        tenants: NDArray[np.intp],
        costs_s: Seconds,
        fixed_s: float,
        most_s: float,
        now: float,
    ) -> Seconds | None:
        """Say by entry what tenants that are held have of a step; None where nobody is."""
        work_s = float(np.add.reduce(costs_s))
        shares = self._has_shares
        comers = self._comers(slots, tenants, now) if shares else tenants[:0]
        shares = bool(len(comers) or (tenants != tenants[0]).any()) and shares
        # Who is promised a pace has it and gains nothing by more.
        shares = shares and not self._running.pace.are_promised(slots)
        if shares and self._running.batch_decodes:
            fixed_s += self._batch_s(fixed_s + work_s)
        self._is_uneven = False
        if not shares and most_s >= work_s:
            return None
        found = self._tenants(slots, tenants, costs_s)
        num_with_rows = len(found.entries)
        if shares and len(comers):
            found = found.beside(self._expected(comers, found, work_s / len(slots)))
        if shares:
            levels = found.asked_s / found.weights
            # Between bands nothing is held for what rows cost.
            bands = found.bands[:num_with_rows]
            is_one_band = bands.min() == bands.max()
            is_uneven = levels.min() < (1.0 - _LEAST_HELD) * levels.max()
            # A profile was measured with steps of all sizes.
            self._is_uneven = bool(is_one_band and is_uneven and not self._step_model.has_prior)
            shares = work_s > fixed_s
            if not shares and most_s >= work_s:
                return None
        parts_s = self._parts.of(found, fixed_s, most_s, shares=shares)
        is_held = parts_s < (1.0 - _LEAST_HELD) * found.asked_s
        is_held[num_with_rows:] = False
        if not is_held.any():
            return None
        held = found.entries[is_held]
        self._tree.note_held(held)
        part_of: Seconds = np.full(int(held[-1]) + 2, np.inf)
        part_of[held] = parts_s[is_held]
        return part_of

    def _most_s(self, slots: Slots, costs_s: Seconds, fixed_s: float, now: float) -> float:
        """Say how much may be decoded for the tightest promise to be kept, where it can be."""
        pace, model = self._running.pace, self._step_model
        needed_s = float(costs_s[pace.due_s(slots) < self._by_then_s(slots, now)].sum())
        within_s = (pace.tightest_s - now) / model.margin - fixed_s
        if within_s < needed_s:
            return np.inf
        return max(within_s, least_work_s(float(costs_s.sum()), fixed_s, self._max_loss))

    def _by_then_s(self, slots: Slots, now: float) -> float:
        """Say when a row that sits out now has its next token at the latest.

        It may run in the step after this one, which comes once those in flight are over.
        """
        left_s = self._running.in_flight_times.left_s(now, stretch=self._step_model.margin)
        return now + left_s + _NUM_STEPS_AHEAD * self._step_s(slots)

    def _step_s(self, slots: Slots) -> float:
        """Predict the longest step in which all rows run, with the least of a prompt besides."""
        contexts = int(self._running.decode_rows.num_tokens[slots].sum())
        num_prompt_tokens = max(self._composer.min_chunk_tokens, LEAST_TOKENS)
        step = StepFeatures(num_prompt_tokens, len(slots), 0, contexts)
        return self._step_model.margin * self._step_model.price_s(step)

    def _batch_s(self, online_s: float) -> float:
        """Price the rows of the batch band that the step may carry besides, as they are."""
        rows = self._running.decode_rows
        batch = rows.unpaused(rows.batch())
        _, row_s, context_s = self._step_model.decode_costs(len(batch))
        batch_s = row_s * len(batch) + context_s * int(rows.num_tokens[batch].sum())
        limit_s = min(self._composer.harvest_step_s, online_s / self._max_loss)
        return min(batch_s, max(0.0, limit_s - online_s))

    def _tenants(self, slots: Slots, tenants: NDArray[np.intp], costs_s: Seconds) -> TenantRows:
        """Gather what each tenant asks for."""
        asked_s = np.bincount(tenants, weights=costs_s).astype(np.float64)
        entries = asked_s.nonzero()[0]
        num_rows = np.bincount(tenants)[entries]
        bands = np.zeros(len(asked_s), dtype=np.intc)
        bands[tenants] = self._running.decode_rows.bands[slots]
        asked_s = asked_s[entries]
        num_steps = self._running.num_steps
        prefilled_s = self.prefills.of(entries, num_steps)
        had_s = asked_s
        if self._part_of is not None:
            had_s = np.minimum(asked_s, self._part_of.take(entries, mode="clip"))
        self.prefills.note_rows(entries, had_s, num_steps)
        wanted_s = (asked_s + prefilled_s) * (1.0 + self._tree.num_waiting_of(entries) / num_rows)
        return TenantRows(
            entries,
            asked_s,
            self._tree.weights_of(entries),
            prefilled_s,
            wanted_s,
            bands[entries],
        )

    def _comers(self, slots: Slots, tenants: NDArray[np.intp], now: float) -> NDArray[np.intp]:
        """List those without a row who had a prompt lately, and so will soon want one."""
        lowest = Band(int(self._running.decode_rows.bands[slots].max()))
        lately = self.prefills.lately(lowest, self._running.num_steps, now)
        if not len(lately):
            return lately
        have_rows = np.zeros(max(lately[-1], tenants.max()) + 1, dtype=bool)
        have_rows[tenants] = True
        comers: NDArray[np.intp] = lately[~have_rows[lately]]
        return comers

    def _expected(self, comers: NDArray[np.intp], tenants: TenantRows, row_s: float) -> TenantRows:
        """Gather those of the comers that send little beside what tenants with rows have."""
        prefilled_s = self.prefills.of(comers, self._running.num_steps)
        asked_s = np.full(len(comers), row_s)
        weights, wanted_s = self._tree.weights_of(comers), asked_s + prefilled_s
        bands = self.prefills.bands_of(comers).astype(np.intc)
        most = ((tenants.asked_s + tenants.prefilled_s) / tenants.weights).max()
        expected = TenantRows(comers, asked_s, weights, prefilled_s, wanted_s, bands)
        return expected.among(wanted_s < FEW * most * weights)

    def _sample(self, slots: Slots, now: float) -> Slots:
        """Return fewer rows than most steps have, or more: those that ran least lately."""
        rows, num_steps = self._running.decode_rows, self._running.num_steps
        if not self._num_steps_left:
            self._begin_sample(len(slots))
        self._num_steps_left -= 1
        if not self._num_steps_left:
            self._next_sample = num_steps + self._sampled_after
        self._is_sample = True
        due_s = self._running.pace.due_s(slots)
        runs = due_s < self._by_then_s(slots, now)
        runs |= rows.turns[slots] >> PLACE_BITS < num_steps - MAX_STEPS_OUT
        num_runs = min(self._num_sampled, len(slots) - 1)
        runs[np.argpartition(rows.turns[slots], num_runs)[:num_runs]] = True
        if (due_s[~runs] < np.inf).any():
            self.kept_s = self._step_s(slots)
        chosen: Slots = slots[runs]
        rows.turns[chosen] = num_steps << PLACE_BITS
        return chosen

    def _begin_sample(self, num_rows: int) -> None:
        """Say how many rows the next steps have, and how long it is until others do."""
        num_chosen = max(1, min(self._num_chosen, num_rows))
        is_few = num_chosen < _SAMPLED_PART
        self._num_sampled = num_chosen * _SAMPLED_PART if is_few else num_chosen // _SAMPLED_PART
        self._num_steps_left = _NUM_SAMPLED_STEPS
        is_anew = self._running.num_steps - self._next_sample > _MOST_BETWEEN
        later = min(2 * self._sampled_after, _MOST_BETWEEN)
        self._sampled_after = _LEAST_BETWEEN if is_anew else later

    def _pick_compiled(self, slots: Slots, costs: tuple[float, float], now: float) -> Slots | None:
        """Do as `_pick`, where it is built; None where it is not."""
        kernel, rotation = self._running.kernel, self._rotation
        if kernel is None:
            return None
        assert self._part_of is not None
        rotation.make_room(len(self._part_of))
        has_promises = self._running.pace.has_promises
        found = kernel.pick(
            slots,
            self._part_of,
            rotation.credit_s,
            rotation.held,
            costs=costs,
            must_before_s=self._by_then_s(slots, now) if has_promises else -np.inf,
            num_steps=self._running.num_steps,
            max_steps_out=MAX_STEPS_OUT,
        )
        if found is None:
            return None
        chosen, held, is_promise_out = found
        rotation.note(held)
        if is_promise_out:
            self.kept_s = self._step_s(slots)
        return chosen

    def _pick(self, slots: Slots, tenants: NDArray[np.intp], costs_s: Seconds, now: float) -> Slots:
        """Let the rows of tenants that are held run in turn, and all of the others'."""
        assert self._part_of is not None
        rows, num_steps = self._running.decode_rows, self._running.num_steps
        # The last one stands for those that have come since.
        parts_s = self._part_of.take(tenants, mode="clip")
        among = (parts_s < np.inf).nonzero()[0]
        if not len(among):
            return slots
        out = slots[among]
        turns = rows.turns[out]
        must = turns >> PLACE_BITS < num_steps - MAX_STEPS_OUT
        due_s = self._running.pace.due_s(out)
        is_promised = due_s < np.inf
        has_promises = bool(is_promised.any())
        if has_promises:
            must |= due_s < self._by_then_s(slots, now)
        picked = self._rotation.pick(
            tenants[among], rows.accounts[out, KEY], costs_s[among], turns, must, parts_s[among]
        )
        if not len(picked) and len(among) == len(slots):
            picked = np.array([turns.argmin()])
        runs = np.ones(len(slots), dtype=bool)
        runs[among] = False
        runs[among[picked]] = True
        if has_promises and not runs[among[is_promised]].all():
            self.kept_s = self._step_s(slots)
        rows.turns[slots[runs]] = num_steps << PLACE_BITS
        rows.turns[out[picked]] += np.arange(len(picked))
        chosen: Slots = slots[runs]
        return chosen
