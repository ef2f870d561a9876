"""How fast the queue drains, and how far predictions of that were off.

The step model says how long a step with a usual chunk takes beside those that decode. What comes
of it in truth is less where requests wait for slots or blocks, or where chunks are cut; so while
there is a backlog what was drained is compared with what the model would have drained, and the
ratio of the last seconds corrects what is predicted. Without a backlog it goes back to one.

While nothing runs there are no steps to learn from, and a machine on which everybody has just given
up would be judged by its last one: who is refused for that makes no step either, and would be
refused for ever. So what was learned of a backlog fades while the machine rests too.

Slots become free when others end, which no step model knows: how many did in the last seconds
tells how long it takes until enough have.
"""

from __future__ import annotations

import math

from engine.contract import EngineInfo
from engine.step_cost import StepFeatures
from scheduler.learn import StepModel

_RATE_S = 4.0
_ENDS_S = 10.0
_CHUNK_STEPS = 16.0
_LEAST_RATIO = 0.02
_NO_ROWS = StepFeatures()


class DrainRate:
    """Predict how long tokens wait for their prefill."""

    def __init__(self, info: EngineInfo, step_model: StepModel) -> None:
        self.depth = info.depth
        self._step_model = step_model
        self._most_tokens = self._chunk_tokens = float(info.max_num_batched_tokens)
        self._context_tokens = 0.0
        self._step_s = 0.0
        # From when it rests if no step comes back before.
        self._rests_s = math.inf
        self._decodes = StepFeatures()
        # All fade with time: tokens that were drained, and that the model would have; rows that
        # ended, and in how long.
        self._drained = self._expected = 0.0
        self._ended = self._ended_in_s = 0.0
        self._price_full_step()

    @property
    def ratio(self) -> float:
        """Return what part of the predicted throughput is had."""
        if self._expected <= 0.0:
            return 1.0
        return max(_LEAST_RATIO, self._drained / self._expected)

    @property
    def step_s(self) -> float:
        """Return how long a step takes, as an average of the last ones; 0 before the first."""
        return self._step_s

    def note(
        self, features: StepFeatures, step_s: float, now: float, *, is_backlogged: bool
    ) -> None:
        """Learn from a step; `is_backlogged` says that some of the queue did not get into it."""
        self.rest(now - step_s)
        self._decodes = features
        self._step_s += (step_s - self._step_s) * (0.1 if self._step_s else 1.0)
        self._rests_s = now + self.depth * self._step_s
        num_tokens = features.num_prefill_tokens
        if is_backlogged and num_tokens:
            self._chunk_tokens += (num_tokens - self._chunk_tokens) / _CHUNK_STEPS
            context = features.prefill_context_tokens
            self._context_tokens += (context - self._context_tokens) / _CHUNK_STEPS
        faded = math.exp(-step_s / _RATE_S)
        self._price_full_step()
        expected = self._chunk_tokens / self._full_step_s * step_s
        self._drained = self._drained * faded + (num_tokens if is_backlogged else expected)
        self._expected = self._expected * faded + expected

    def note_ends(self, num_rows: int, step_s: float) -> None:
        """Learn that `num_rows` gave their slots back in a step."""
        faded = math.exp(-step_s / _ENDS_S)
        self._ended = self._ended * faded + num_rows
        self._ended_in_s = self._ended_in_s * faded + step_s

    def slots_s(self, num_slots: float) -> float:
        """Predict how long it takes until `num_slots` more rows have given their slots back."""
        if num_slots <= 0.0 or not self._ended_in_s:
            return 0.0
        return num_slots * self._ended_in_s / max(self._ended, 0.5)

    def rest(self, until_s: float) -> None:
        """Let what was learned of a backlog fade by how long nothing has run and waited."""
        rested_s = until_s - self._rests_s
        if rested_s <= 0.0:
            return
        self._rests_s = until_s
        faded = math.exp(-rested_s / _RATE_S)
        self._drained = self._expected - (self._expected - self._drained) * faded
        self._chunk_tokens = self._most_tokens - (self._most_tokens - self._chunk_tokens) * faded
        self._context_tokens *= faded
        self._price_full_step()

    def fits_a_step(self, num_tokens: float) -> bool:
        """Tell whether so many are computed in one step, whatever comes behind them."""
        return num_tokens <= self._chunk_tokens

    def wait_s(
        self,
        num_tokens: float,
        *,
        in_flight_s: float | None,
        num_behind: float = math.inf,
        inflow_per_s: float = 0.0,
    ) -> float:
        """Predict when the last of `num_tokens` that are prefilled from now on is, from now.

        Steps in flight end first, in `in_flight_s`; None where nothing runs. Beyond one step the
        last one is as full as the others with what comes later: `num_behind` tokens at most, and
        those that come until it begins.
        """
        if in_flight_s is None:
            in_flight_s = 0.0
            if self._decodes != _NO_ROWS:
                self._decodes = _NO_ROWS
                self._price_full_step()
        if self.fits_a_step(num_tokens):
            return in_flight_s + self._price(num_tokens) / self.ratio
        num_full = math.ceil(num_tokens / self._chunk_tokens) - 1
        full_s = in_flight_s + num_full * self._full_step_s / self.ratio
        num_last = num_tokens - num_full * self._chunk_tokens
        num_last = min(self._chunk_tokens, num_last + num_behind + inflow_per_s * full_s)
        return full_s + self._price(num_last) / self.ratio

    def tokens_per_s(self) -> float:
        """Predict how many prompt tokens a second are computed with a backlog."""
        return self._chunk_tokens / self._full_step_s * self.ratio

    def _price_full_step(self) -> None:
        self._full_step_s = max(1e-9, self._price(self._chunk_tokens))

    def _price(self, num_tokens: float) -> float:
        decodes = self._decodes
        return self._step_model.price_s(
            StepFeatures(
                num_prefill_tokens=math.ceil(num_tokens),
                num_decode_tokens=decodes.num_decode_tokens,
                prefill_context_tokens=round(self._context_tokens),
                decode_context_tokens=decodes.decode_context_tokens,
            )
        )
