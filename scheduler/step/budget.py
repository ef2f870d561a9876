"""How much a step may compute so that its tokens are in time.

A step that decodes rows with promises must end before the first of their next tokens is due. The
step model prices what it must do; the time left is sold to prefills by the token, and after them
to the batch band (`scheduler.step.harvest`). Two bounds are kept apart: where only the *pace* is
promised, late rows are no reason to stop prefilling altogether, so `min_chunk_tokens` are always
granted, and no step takes more than `pace_fraction` of the tightest pace, or the first long one
would spend what later tokens need; a promised *gap*, or `max_step_s`, is a bound on the step itself
and leaves a few tokens at least, or a gap that cannot be kept would keep all prompts out.

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

    def __init__(self, config: ComposerConfig, pace: Pace, step_model: StepModel) -> None:
        self._config = config
        self._pace = pace
        self._step_model = step_model
        # How much earlier the step must end for rows that sit it out.
        self.kept_s = 0.0
        # How long it may take for the first tokens that come of it.
        self.first_s = math.inf

    @property
    def is_calibrated(self) -> bool:
        """Tell whether steps have a price by now."""
        return self._step_model.is_calibrated

    def prefill_tokens(self, decodes: StepFeatures, room: int, now: float) -> int:
        """Grant prompt tokens to a step that decodes `decodes`; at most `room`."""
        config = self._config
        step_s = math.inf if config.max_step_s is None else config.max_step_s
        slack_s = math.inf
        if config.dynamic_chunk:
            step_s = min(step_s, self._pace.shortest_gap_s)
            slack_s = min(self._slack_s(now), self.worthwhile_s(decodes))
        if slack_s < step_s:
            room = min(room, max(config.min_chunk_tokens, self.solve(decodes, slack_s, room)))
        if step_s < math.inf:
            room = min(room, max(LEAST_TOKENS, self.solve(decodes, step_s, room)))
        return room

    def promised_s(self, now: float) -> float:
        """Say how long a step may take for all that was promised."""
        max_step_s = self._config.max_step_s
        step_s = math.inf if max_step_s is None else max_step_s
        return min(step_s, self.first_s, self._slack_s(now), self._pace.shortest_gap_s)

    def _slack_s(self, now: float) -> float:
        """Say how long a step may take for the paces that were promised."""
        pace = self._pace
        slack_s = pace.tightest_s - now - self.kept_s
        return min(slack_s, self._config.pace_fraction * pace.shortest_tpot_s)

    def worthwhile_s(self, decodes: StepFeatures) -> float:
        """Say how long a step may be before length saves nothing any more."""
        share = self._config.max_overhead_share
        if share is None:
            return math.inf
        least = replace(decodes, num_prefill_tokens=1)
        return max(_UNNOTICED_S, self.price(least) / share)

    def price(self, step: StepFeatures) -> float:
        """Predict how long a step takes, in seconds, to be kept with some certainty."""
        return self._step_model.margin * self._step_model.price_s(step)

    def solve(self, step: StepFeatures, limit_s: float, room: int, *, context: int = 0) -> int:
        """Say how many tokens, `room` at most, of a prompt fit that has `context` by now."""
        return self._step_model.max_prefill_tokens(
            step, limit_s, context_tokens=context, max_num_tokens=room
        )
