"""How long a step may be for its prompts where rows of other tenants wait for it to end.

A row draws one token a step, so who sends prompts decides how long everybody's tokens take: on a
GPU a step with 2,000 tokens of prompts takes as long as twenty without. `decode_shares` levels what
tenants' rows have of a step; here it is their prompts. A tenant's are cut to what is left, beside
its own rows, of the level that is fair between all who have something in the step, or of what the
same bound on the loss of throughput takes (`scheduler.step.water_level`).

- Held are those who are ahead: what their rows ask for and their prompts have had lately is more,
  for their weights, than that of a tenant whose rows run. Whose prompts come now and then has whole
  steps, beside many rows of another too.
- Rows that were promised a pace, or gaps, have it by `scheduler.step.budget`, and are nobody's
  reason to hold prompts. Nor are rows of a lower band.
- A long prompt has a rule of its own (`scheduler.step.long_prompts`), and its steps are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine.step_cost import StepFeatures
from scheduler.config import FairnessConfig
from scheduler.learn import StepModel
from scheduler.order import FairTree
from scheduler.request import Band
from scheduler.running import RunningSet, Slots
from scheduler.sequence import MEMBER, Sequence
from scheduler.step.recent_prefills import RecentPrefills
from scheduler.step.water_level import NO_LEVEL, Seconds, fair_level, held_to

# Less is not worth a change.
_LEAST_HELD = 0.05


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
        self, prompts: Many[Sequence], decoding: Slots, step: StepFeatures, room: int
    ) -> int:
        """Say how many tokens of prompts are fair, of the `room` that there is for them.

        Args: `prompts`: those under way, and the next to begin. `decoding`: the rows that run.
        `step`: with these, and with what the prompts have so far, which is read for any token.
        """
        if not prompts:
            return room
        alone_s = self._step_model.price_s(step)
        with_all = replace(step, num_prefill_tokens=room)
        full_s = self._step_model.price_s(with_all) - alone_s
        wanted: dict[int, int] = {}
        for prompt in prompts:
            member, num_left = prompt.account[MEMBER], prompt.num_tokens - prompt.num_computed
            wanted[member] = min(room, wanted.get(member, 0) + num_left)
        wanted_s = {member: full_s * tokens / room for member, tokens in wanted.items()}
        band = min(prompt.request.band for prompt in prompts)
        limit_s = self._limit_s(wanted_s, decoding, band, alone_s, full_s)
        return room if limit_s >= full_s else int(room * limit_s / full_s)

    def _limit_s(
        self,
        wanted_s: Mapping[int, float],
        decoding: Slots,
        band: Band,
        alone_s: float,
        full_s: float,
    ) -> float:
        """Say how long the step may take for its prompts; infinity where nobody is held.

        Args: `wanted_s`: what each tenant's prompts would take, by its entry in the tree, the
        highest of `band`. `full_s`: what all that there is room for takes, which a tenant that is
        held asks for. `alone_s`: what the step takes without.
        """
        rows, num_steps = self._running.decode_rows, self._running.num_steps
        members = rows.accounts[decoding, MEMBER]
        _, row_s, context_s = self._step_model.decode_costs(len(decoding))
        costs_s = np.maximum(row_s + context_s * rows.num_tokens[decoding], 1e-9)
        size = max(int(members.max()), *wanted_s) + 1
        rows_s = np.bincount(members, weights=costs_s, minlength=size)
        fixed_s = max(0.0, alone_s - float(rows_s.sum()))
        prompts_s = np.zeros(size)
        prompts_s[list(wanted_s)] = list(wanted_s.values())
        entries = np.flatnonzero(rows_s + prompts_s)
        rows_s, prompts_s = rows_s[entries], prompts_s[entries]
        weights = self._tree.weights_of(entries)
        levels = (rows_s + self._prefills.of(entries, num_steps)) / weights
        waits = rows.bands[decoding] <= band
        waits &= ~self._running.pace.has_promise(decoding)
        is_waiting = np.bincount(members[waits], minlength=size)[entries] > 0
        is_held = _are_ahead(levels, is_waiting) & (prompts_s > 0.0)
        if not is_held.any():
            return math.inf
        asked_s = rows_s + full_s * is_held
        level = fair_level(asked_s, weights, asked_s, fixed_s, self._max_loss)
        if level == NO_LEVEL:
            return math.inf
        parts_s: Seconds = np.maximum(held_to(asked_s, weights, level) - rows_s, 0.0)
        return float(prompts_s[~is_held].sum() + parts_s[is_held].sum())


def _are_ahead(levels: Seconds, is_waiting: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tell which tenants have had more than another one whose rows wait for the step's end."""
    least = levels[is_waiting].min() if is_waiting.any() else np.inf
    ahead: NDArray[np.bool_] = least < (1.0 - _LEAST_HELD) * levels
    return ahead
