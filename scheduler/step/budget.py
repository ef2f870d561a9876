"""How much a step may compute so that its tokens are in time.

A step that decodes rows with promises must end before the first of their next tokens is due. The
step model prices what it must do; the time left is sold to prefills by the token, and after them
to the batch band by the row. Two bounds are kept apart: where only the *pace* is promised, late
rows are no reason to stop prefilling altogether, so `min_chunk_tokens` are always granted, and no
step takes more than `pace_fraction` of the tightest pace, or the first long one would spend what
later tokens need; a promised *gap*, or `max_step_s`, is a bound on the step itself and leaves a few
tokens at least, or a gap that cannot be kept would keep all prompts out.

And a step is not filled for the sake of being full. It costs something however short it is, which
many tokens share; once that is a twentieth of it, twice the tokens save a fortieth, and whoever
comes while it runs waits for twice as long. On a GPU a step costs much by itself, and the engine's
most tokens come first; on a small model on a CPU it costs little, and steps stay short.

Source: the dynamic chunk of the Niyama artifact, microsoft/sarathi-serve, branch
niyama_asplos2026; here the largest chunk is solved for, not looked up.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine.step_cost import StepFeatures
from scheduler.config import ComposerConfig
from scheduler.learn import StepModel
from scheduler.running import Pace

# Of a prompt, in a step that is too long for a promised gap already.
LEAST_TOKENS = 16
# Nobody minds a step that is shorter.
_UNNOTICED_S = 0.01


class StepBudget:
    """Say how many tokens a step can take beside what it already has."""

    def __init__(
        self, config: ComposerConfig, pace: Pace, step_model: StepModel, *, max_loss: float
    ) -> None:
        self._config = config
        self._max_loss = max_loss
        self._pace = pace
        self._step_model = step_model
        # How much earlier the step must end for rows that sit it out.
        self.kept_s = 0.0
        # What this step has for batch work beside online rows, and what steps before it had.
        self._offered_s = self._saved_s = 0.0

    def prefill_tokens(self, decodes: StepFeatures, room: int, now: float) -> int:
        """Grant prompt tokens to a step that decodes `decodes`; at most `room`."""
        config = self._config
        step_s = math.inf if config.max_step_s is None else config.max_step_s
        slack_s = math.inf
        if config.dynamic_chunk:
            step_s = min(step_s, self._pace.shortest_gap_s)
            slack_s = min(self._slack_s(now), self._worthwhile_s(decodes))
        if slack_s < step_s:
            room = min(room, max(config.min_chunk_tokens, self._solve(decodes, slack_s, room)))
        if step_s < math.inf:
            room = min(room, max(LEAST_TOKENS, self._solve(decodes, step_s, room)))
        return room

    def harvest_limit_s(self, online: StepFeatures, now: float) -> float:
        """Say how long a step may take that carries work of the batch band beside `online`.

        Online rows pay for batch work with their pace, and the batch band with its throughput for
        short steps, as what a step costs for the online rows is done once in each: that is a part
        of the step of at most what may be lost. What is too little for any of it is saved up, as
        for a row with a long context. Where there are no online rows, whoever comes waits for the
        step to end, which is no longer than its length saves anything.
        """
        pace, limit_s = self._pace, self._longest_s
        self._offered_s = 0.0
        if not online.num_tokens:
            limit_s = min(limit_s, self._worthwhile_s(online))
        elif self._max_loss and self._step_model.is_calibrated:
            online_s = self._price(online)
            self._offered_s = online_s / self._max_loss - online_s
            limit_s = min(limit_s, online_s + self._offered_s + self._saved_s)
        return min(limit_s, self._slack_s(now), pace.shortest_gap_s)

    def note_harvested(self, *, anything: bool) -> None:
        """Save up what the step had for batch work if that took nothing of it."""
        saved_s = min(self._saved_s + self._offered_s, self._longest_s)
        self._saved_s = 0.0 if anything else saved_s

    def may_ever_run(self, step: StepFeatures, num_tokens: NDArray[np.intc]) -> NDArray[np.bool_]:
        """Tell which rows of the batch band, of so many tokens, the longest step has room for."""
        low, high = 0, int(num_tokens.max())
        while low < high:
            middle = (low + high + 1) // 2
            if self._price(_with_rows(step, 1, middle)) <= self._longest_s:
                low = middle
            else:
                high = middle - 1
        return num_tokens <= low

    @property
    def _longest_s(self) -> float:
        config = self._config
        step_s = math.inf if config.max_step_s is None else config.max_step_s
        return min(step_s, config.harvest_step_s)

    def harvest_rows(self, step: StepFeatures, num_tokens: NDArray[np.intc], limit_s: float) -> int:
        """Count decoding rows of the batch band, of so many tokens each, that a step may carry."""
        if limit_s == math.inf or not len(num_tokens):
            return len(num_tokens)
        contexts = np.cumsum(num_tokens)
        low, high = 0, len(num_tokens)
        while low < high:
            middle = (low + high + 1) // 2
            if self._price(_with_rows(step, middle, contexts.item(middle - 1))) <= limit_s:
                low = middle
            else:
                high = middle - 1
        return low

    def harvest_tokens(self, step: StepFeatures, room: int, limit_s: float) -> int:
        """Grant prompt tokens of the batch band to a step."""
        return room if limit_s == math.inf else min(room, self._solve(step, limit_s, room))

    def _slack_s(self, now: float) -> float:
        """Say how long a step may take for the paces that were promised."""
        pace = self._pace
        slack_s = pace.tightest_s - now - self.kept_s
        return min(slack_s, self._config.pace_fraction * pace.shortest_tpot_s)

    def _worthwhile_s(self, decodes: StepFeatures) -> float:
        """Say how long a step may be before length saves nothing any more."""
        share = self._config.max_overhead_share
        if share is None:
            return math.inf
        least = replace(decodes, num_prefill_tokens=1)
        return max(_UNNOTICED_S, self._price(least) / share)

    def _price(self, step: StepFeatures) -> float:
        return self._step_model.margin * self._step_model.price_s(step)

    def _solve(self, step: StepFeatures, limit_s: float, room: int) -> int:
        return self._step_model.max_prefill_tokens(
            step, limit_s, context_tokens=0, max_num_tokens=room
        )


def _with_rows(step: StepFeatures, num_rows: int, context: int) -> StepFeatures:
    return replace(
        step,
        num_decode_tokens=step.num_decode_tokens + num_rows,
        decode_context_tokens=step.decode_context_tokens + context,
    )
