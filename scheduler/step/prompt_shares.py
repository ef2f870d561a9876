"""How long a step may be for its prompts where rows of other tenants wait for it to end.

A row draws one token a step, so who sends prompts decides how long everybody's tokens take: on a
GPU a step with 2,000 tokens of prompts takes as long as twenty without. `decode_shares` levels what
tenants' rows have of a step; here it is their prompts. A tenant's are cut to what is left, beside
its own rows, of the level that is fair between all who have something in the step, or of what the
same bound on the loss of throughput takes (`scheduler.step.water_level`).

- Held are those who are ahead: what their rows ask for and their prompts have had lately is most of
  all, for their weights, and more than that of a tenant whose rows run. Who is between the two is
  not: it has what it asks for before the first one is served more. Whose prompts come now and then
  has whole steps, beside many rows of another too.
- A tenant that had a prompt lately will soon have another, whose first token waits for the step
  under way and for its own: it counts as one whose rows run.
- A part is of every step on average: who had no prompt in some has theirs in the next one, or a
  few prompts would be cut to less than the many of another have.
- Rows that were promised a pace, or gaps, have it by `scheduler.step.budget`, and are nobody's
  reason to hold prompts. Nor are rows of a lower band.
- Prompts that were promised a first token are not held: a promise is not traded for a share, and
  who was let in on one (`scheduler.admission`) was so for steps that are as long as there is room.
- A long prompt has a rule of its own (`scheduler.step.long_prompts`), and its steps are left alone.
- Where rows cost more than the rest of a step, as on a CPU, tenants sit out for what their rows
  bring (`scheduler.step.decode_shares`): held here as well, who brings prompts would be held twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.step_cost import StepFeatures
from scheduler.config import FairnessConfig
from scheduler.learn import StepModel
from scheduler.order import FairTree
from scheduler.request import Band
from scheduler.running import RunningSet, Slots
from scheduler.sequence import MEMBER, Sequence
from scheduler.step.recent_prefills import FEW, RecentPrefills
from scheduler.step.water_level import NO_LEVEL, Seconds, fair_level, held_to

# Who has no more than so many times as much as another is not ahead of it: where all are alike,
# steps would be shorter for nobody's sake.
_AHEAD = 2.0
# Who had less than the one who had most has what it asks for before that one is served more.
_NEAR = 0.9
# Of steps in which a tenant had no prompt: so many parts are kept for its next one. A long prompt
# rests for many.
_MAX_SAVED = 4


class _Tenants(NamedTuple):
    """Hold columns of tenants, in seconds of a step.

    `rows_s` is what their rows ask for, `run_s` what those that run have, `prompts_s` what their
    prompts want and `promised_s` those with a promise, and `levels` what all of theirs have had of
    a step lately, for their weights. Who `is_waiting` has rows or a first token that wait for the
    step's end. `num_steps_since` counts steps from their last prompt on.
    """

    rows_s: Seconds
    run_s: Seconds
    prompts_s: Seconds
    promised_s: Seconds
    weights: Seconds
    levels: Seconds
    is_waiting: NDArray[np.bool_]
    num_steps_since: NDArray[np.int64]


class PromptShares:
    """Bound the time of prompts in a step."""

    def __init__(
        self,
        config: FairnessConfig,
        running: RunningSet,
        tree: FairTree,
        step_model: StepModel,
        prefills: RecentPrefills,
    ) -> None:
        self._max_loss = config.max_throughput_loss if config.levels_prompts else 0.0
        self._running = running
        self._tree = tree
        self._step_model = step_model
        self._prefills = prefills

    @property
    def are_kept(self) -> bool:
        """Tell whether prompts are held at all."""
        return bool(self._max_loss and self._tree.has_shares and self._step_model.is_calibrated)

    def num_tokens(
        self,
        under_way: Many[Sequence],
        head: Sequence | None,
        decoding: Slots,
        step: StepFeatures,
        room: int,
        now: float,
    ) -> int:
        """Say how many tokens of prompts are fair, of the `room` that there is for them.

        Args: `under_way`: prompts that have begun. `head`: the next to begin, which stands for all
        that wait of its tenant. `decoding`: the rows that run. `step`: with these, and with what
        the prompts have so far, which is read for any token.
        """
        if not under_way and head is None:
            return room
        alone_s = self._step_model.price_s(step)
        run_s = self._run_s(decoding)
        if run_s > max(0.0, alone_s - run_s):
            # Rows cost more than what is paid for any step: nobody is held, see `_limit_s`.
            return room
        with_all = replace(step, num_prefill_tokens=room)
        full_s = self._step_model.price_s(with_all) - alone_s
        if full_s <= 0.0:
            return room
        prompts = [(prompt, prompt.num_tokens - prompt.num_computed) for prompt in under_way]
        if head is not None:
            num_waiting = int(self._tree.num_waiting_of(np.array([head.account[MEMBER]]))[0])
            prompts.append((head, num_waiting * head.num_tokens))
        # What all want, and of it what is promised.
        wanted: dict[int, list[int]] = {}
        for prompt, num_left in prompts:
            nums = wanted.setdefault(prompt.account[MEMBER], [0, 0])
            nums[0] += num_left
            nums[1] += num_left if prompt.request.slo.ttft_s is not None else 0
        wanted_s = {
            member: [full_s * num / room for num in nums] for member, nums in wanted.items()
        }
        band = min(prompt.request.band for prompt, _ in prompts)
        tenants = self._tenants(wanted_s, decoding, band, now)
        limit_s = math.inf if tenants is None else self._limit_s(tenants, alone_s, full_s)
        return room if limit_s >= full_s else int(room * limit_s / full_s)

    def _run_s(self, decoding: Slots) -> float:
        """Price the rows that run."""
        _, row_s, context_s = self._step_model.decode_costs(len(decoding))
        num_contexts = int(np.add.reduce(self._running.decode_rows.num_tokens[decoding]))
        return row_s * len(decoding) + context_s * num_contexts

    def _limit_s(self, tenants: _Tenants, alone_s: float, full_s: float) -> float:
        """Say how long the step may take for its prompts; infinity where nobody is held.

        Args: `alone_s`: what the step takes without. `full_s`: what all that there is room for
        takes, which a tenant that is held asks for.
        """
        rows_s, run_s, weights = tenants.rows_s, tenants.run_s, tenants.weights
        if len(weights) < 2:
            return math.inf
        is_held = _are_ahead(tenants.levels, tenants.is_waiting)
        is_held &= tenants.prompts_s > 0.0
        if not is_held.any():
            return math.inf
        fixed_s = max(0.0, alone_s - float(run_s.sum()))
        if rows_s.sum() > fixed_s:
            return math.inf
        # Rows that sit out ask for as much: it is the level of `decode_shares`.
        asked_s = rows_s + full_s * is_held
        level = fair_level(asked_s, weights, asked_s, fixed_s, self._max_loss)
        if level == NO_LEVEL:
            return math.inf
        parts_s: Seconds = np.maximum(held_to(asked_s, weights, level) - run_s, 0.0)
        parts_s *= np.minimum(tenants.num_steps_since, _MAX_SAVED)
        parts_s = np.maximum(parts_s, tenants.promised_s)
        return float(tenants.prompts_s[~is_held].sum() + parts_s[is_held].sum())

    def _tenants(
        self, wanted_s: Mapping[int, Many[float]], decoding: Slots, band: Band, now: float
    ) -> _Tenants | None:
        """Gather those who have something in the step, or had a prompt lately.

        Returns: None where nobody who has a prompt has about as much as who has most.

        Args: `wanted_s`: what each tenant's prompts would take, and those with a promise, by its
        entry in the tree, the highest of `band`.
        """
        rows, num_steps = self._running.decode_rows, self._running.num_steps
        lately, slots = self._prefills.lately(band, num_steps, now), rows.online()
        members = rows.accounts[slots, MEMBER]
        size = int(max(*wanted_s, members.max(initial=0), lately.max(initial=0))) + 1
        _, row_s, context_s = self._step_model.decode_costs(len(decoding))
        costs_s = np.maximum(row_s + context_s * rows.num_tokens[slots], 1e-9)
        all_rows_s = np.bincount(members, weights=costs_s, minlength=size).astype(np.float64)
        prompts_s, promised_s = np.zeros((2, size))
        prompts_s[list(wanted_s)], promised_s[list(wanted_s)] = zip(*wanted_s.values(), strict=True)
        is_waiting, comes = np.zeros((2, size), dtype=bool)
        comes[lately] = True
        entries = (comes | (all_rows_s + prompts_s > 0.0)).nonzero()[0]
        rows_s, weights = all_rows_s[entries], self._tree.weights_of(entries)
        levels = (rows_s + self._prefills.of(entries, num_steps)) / weights
        if not (_are_near_most(levels) & (prompts_s[entries] > 0.0)).any():
            return None
        runs = np.zeros(len(rows.accounts), dtype=bool)
        runs[decoding] = True
        runs = runs[slots]
        run_s = all_rows_s
        if len(decoding) < len(slots):
            run_s = np.bincount(members, weights=costs_s * runs, minlength=size).astype(np.float64)
        waits = runs & (rows.bands[slots] <= band) & ~self._running.pace.has_promise(slots)
        is_waiting[members[waits]] = True
        sends_few = comes[entries] & (levels < FEW * levels.max(initial=0.0))
        is_waiting = is_waiting[entries] | sends_few
        num_since = self._prefills.steps_since(entries, num_steps)
        return _Tenants(
            rows_s=rows_s,
            run_s=run_s[entries],
            prompts_s=prompts_s[entries],
            promised_s=promised_s[entries],
            weights=weights,
            levels=levels,
            is_waiting=is_waiting,
            num_steps_since=num_since,
        )


def _are_ahead(levels: Seconds, is_waiting: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tell who had most, and more than another one whose rows wait for the step's end."""
    least = levels[is_waiting].min() if is_waiting.any() else np.inf
    ahead: NDArray[np.bool_] = _are_near_most(levels) & (levels > _AHEAD * least)
    return ahead


def _are_near_most(levels: Seconds) -> NDArray[np.bool_]:
    near: NDArray[np.bool_] = levels > _NEAR * levels.max(initial=0.0)
    return near
