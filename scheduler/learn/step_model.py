"""Predicts how long a step will take, and learns from how long steps took.

The form is that of `engine.step_cost.StepCost`: two linear models, for small steps and large ones,
each of an intercept and five counts. Learning is recursive least squares on relative errors, so
that a short step counts as much as a long one, with these guards:

- What is not seen is not forgotten, see `scheduler.learn.step_regime`.
- A hiccup of a second counts as a step that took twice its prediction, as does all beyond that.
- Sixteen steps in a row that are all too long, or all too short, by more than a tenth at the median
  say that the machine has changed: both models are scaled at once. The first eight steps do the
  same to the prior, whose proportions are worth more than its unit. Sixteen without a prompt say
  nothing of prompts, and leave what these add as it is; and so many with prompts, whatever is
  between them, scale that alone. Where few steps had prompts, each swing of the machine had taken
  theirs with it: a step that took 10 ms was priced at 6 for as long as a flood went on.
- A prompt token never makes a step cheaper within a regime.

It has no clock and is not for several threads.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import ceil
from statistics import median

import numpy as np
from numpy.typing import NDArray

from engine.step_cost import LinearCost, StepCost, StepFeatures, attended_tokens
from scheduler.learn.decode_line import DecodeLine
from scheduler.learn.step_regime import Coefficients, Regime
from scheduler.learn.swing import NUM_ALIKE, Swing

MARGIN_BOUNDS = (1.0, 3.0)

# A slow machine's: until a step was seen, chunks stay small.
_GUESS_LINE = LinearCost(
    intercept_s=0.02,
    per_token_s=1e-3,
    per_decode_context_token_s=1e-6,
    per_prefill_context_token_s=1e-6,
)
_GUESS = StepCost("guess", _GUESS_LINE, _GUESS_LINE)

_NUM_FIRST_STEPS = 8
_NUM_CALIBRATED = 32
_MARGIN_WINDOW = 256
_MARGIN_QUANTILE = 0.95
# Of a step in the mean of errors, which remembers about two hundred.
_ERROR_WEIGHT = 0.005
_MAX_ERROR = 10.0
_MAX_RATIO = 2.0
# Of a step's price, what its prompts are taken for at least.
_LEAST_PART = 0.05
# How wrong a coefficient may be, in its own size, over the noise of a step.
_DOUBT_OF_PRIOR = 5.0
_DOUBT_OF_GUESS = 50.0


class StepModel:
    """Price steps in seconds and learn online; see the module.

    `prior` is where learning starts from, and what `price_s` says until steps are observed.
    `margin` holds until there are 32 steps; then the margin is the factor of their predictions
    that 95 % of the last 256 steps stayed within. `forgetting` is the weight that a
    step keeps when one like it is observed: 0.998 remembers about 500.
    """

    def __init__(
        self, prior: StepCost | None = None, *, margin: float = 1.2, forgetting: float = 0.998
    ) -> None:
        cost = _GUESS if prior is None else prior
        doubt = _DOUBT_OF_GUESS if prior is None else _DOUBT_OF_PRIOR
        self._has_prior = prior is not None
        self._split_num_tokens = cost.split_num_tokens
        self._small = Regime(cost.small, doubt, forgetting)
        self._large = Regime(cost.large, doubt, forgetting)
        self._decode_line = DecodeLine()
        self._first: list[tuple[StepFeatures, float]] = []
        self._num_observed = 0
        self._margin = min(max(margin, MARGIN_BOUNDS[0]), MARGIN_BOUNDS[1])
        self._ratios: deque[float] = deque()
        self._sorted_ratios: list[float] = []
        self._swing, self._prompts_swing = Swing(), Swing()
        self._num_without_prompts = 0
        self._error = self._bias = 0.0

    @property
    def has_prior(self) -> bool:
        """Tell whether learning started from a profile, and not from a guess."""
        return self._has_prior

    @property
    def is_calibrated(self) -> bool:
        """Tell whether predictions rest on a prior or on at least 32 steps, and not on a guess.

        Who refuses work because of a prediction asks this first.
        """
        return self._has_prior or self._num_observed >= _NUM_CALIBRATED

    @property
    def error(self) -> float:
        """Say how far off predictions were lately: the mean of |predicted - took| / took."""
        return self._error

    @property
    def bias(self) -> float:
        """Say the same with its sign: above 0 where steps took less than was predicted."""
        return self._bias

    @property
    def margin(self) -> float:
        """Return the factor, from 1 to 3, by which a prediction is to be stretched to be kept."""
        return self._margin

    def price_s(self, features: StepFeatures) -> float:
        """Predict how long a step takes, without the margin."""
        intercept, prefill, decode, decode_context, prefill_context, attended = self.coefficients(
            features
        )
        price = (
            intercept
            + prefill * features.num_prefill_tokens
            + decode * features.num_decode_tokens
            + decode_context * features.decode_context_tokens
            + prefill_context * features.prefill_context_tokens
            + attended * features.prefill_attended_tokens
        )
        floor = self._floor_s
        return price if price > floor else floor

    def prices_with_chunk_s(
        self, step: StepFeatures, num_tokens: NDArray[np.int64], contexts: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predict as `price_s` does for a step and one chunk of a prompt besides, for each of many.

        Args: the tokens of each chunk and the context that it finds computed.
        Returns: the prices, and what they were without these contexts.
        """
        lines = [_chunk_line(r.coefficients, step) for r in (self._small, self._large)]
        is_large = num_tokens > self._split_num_tokens - step.num_tokens
        fixed_s, token_s, square_s, context_s = np.array(lines).T.take(is_large, axis=1)
        plain_s = fixed_s + num_tokens * (token_s + square_s * num_tokens)
        with_s = plain_s + contexts * (context_s + 2.0 * square_s * num_tokens)
        floor = self._floor_s
        return np.maximum(with_s, floor), np.maximum(plain_s, floor)

    def coefficients(self, features: StepFeatures) -> Coefficients:
        """Return what makes up the price of a step like this; see `Regime.coefficients`."""
        num_tokens = features.num_prefill_tokens + features.num_decode_tokens
        return (self._small if num_tokens <= self._split_num_tokens else self._large).coefficients

    def decode_costs(self, num_rows: int) -> tuple[float, float, float]:
        """Say what a step of so many rows that decode is made of, in seconds.

        Returns: what any step costs, what a row does, and what a token of its context does.
        """
        regime = self._small if num_rows <= self._split_num_tokens else self._large
        fixed_s, _, row_s, context_s, _, _ = regime.coefficients
        seen = self._decode_line.costs(row_s, context_s)
        return (max(fixed_s, self._floor_s), row_s, context_s) if seen is None else seen

    def added_s(self, features: StepFeatures) -> float:
        """Predict what these tokens add to a small step."""
        _, prefill, decode, decode_context, prefill_context, attended = self._small.coefficients
        return (
            prefill * features.num_prefill_tokens
            + decode * features.num_decode_tokens
            + decode_context * features.decode_context_tokens
            + prefill_context * features.prefill_context_tokens
            + attended * features.prefill_attended_tokens
        )

    def observe(self, features: StepFeatures, step_s: float) -> None:
        """Learn that a step of these features took `step_s`; no time at all teaches nothing."""
        if step_s <= 0.0:
            return
        self._num_observed += 1
        num_rows, num_contexts = features.num_decode_tokens, features.decode_context_tokens
        decodes = not features.num_prefill_tokens
        self._decode_line.observe(num_rows, num_contexts, step_s, decodes=decodes)
        if self._num_observed > _NUM_FIRST_STEPS:
            self._learn(features, step_s)
            return
        self._first.append((features, step_s))
        if self._num_observed == _NUM_FIRST_STEPS:
            factor = median(took_s / self._positive_s(seen) for seen, took_s in self._first)
            self._scale(factor, prompts=factor)
            for seen, took_s in self._first:
                self._learn(seen, took_s)
            self._first.clear()

    def max_prefill_tokens(
        self,
        base: StepFeatures,
        limit_s: float,
        *,
        context_tokens: int,
        max_num_tokens: int,
    ) -> int:
        """Return how many prompt tokens may join a step so that it ends within `limit_s`.

        They belong to one sequence of which `context_tokens` are computed already. It is the
        largest number up to `max_num_tokens` whose price, stretched by the margin, is within the
        limit; 0 where a single token is too much, be the step without it within the limit or not.
        """
        price_limit_s = limit_s / self._margin
        if price_limit_s < self._floor_s:
            return 0
        num_small = min(max_num_tokens, max(self._split_num_tokens - base.num_tokens, 0))
        for regime, low, high in (
            (self._large, num_small + 1, max_num_tokens),
            (self._small, 1, num_small),
        ):
            num_tokens = regime.max_prefill_tokens(base, price_limit_s, context_tokens, high)
            if num_tokens >= low:
                return num_tokens
        return 0

    def prefill_s(
        self,
        num_tokens: int,
        *,
        chunk_tokens: int,
        decodes: StepFeatures,
        context_tokens: int = 0,
    ) -> float:
        """Predict how long a prompt's prefill takes in chunks, beside decodes that go on.

        Args: `num_tokens`: still to compute. `chunk_tokens`: of a step, at least 1. `decodes`:
        what else is in each of these steps. `context_tokens`: computed already, or cached.
        """
        num_chunks, rest = divmod(num_tokens, max(chunk_tokens, 1))
        # Contexts grow by a chunk a step and enter linearly: the step in the middle is the mean.
        context_in_the_middle = context_tokens + max(num_chunks - 1, 0) * chunk_tokens // 2
        total_s = 0.0
        if num_chunks:
            total_s += num_chunks * self.price_s(
                _with_chunk(decodes, chunk_tokens, context_in_the_middle)
            )
        if rest:
            context = context_tokens + num_tokens - rest
            total_s += self.price_s(_with_chunk(decodes, rest, context))
        return total_s

    def as_cost(self, name: str) -> StepCost:
        """Return what is known now, as a profile that prices as `price_s` does."""
        return StepCost(
            name=name,
            small=self._small.as_line(),
            large=self._large.as_line(),
            split_num_tokens=self._split_num_tokens,
        )

    @property
    def _floor_s(self) -> float:
        small, large = self._small.coefficients[0], self._large.coefficients[0]
        return small if small < large else large

    def _positive_s(self, features: StepFeatures) -> float:
        return max(self.price_s(features), 1e-9)

    def _learn(self, features: StepFeatures, step_s: float) -> None:
        price_s = self._positive_s(features)
        ratio = step_s / price_s
        self._note_ratio(ratio)
        off = min(1.0 / ratio - 1.0, _MAX_ERROR)
        self._bias += _ERROR_WEIGHT * (off - self._bias)
        self._error += _ERROR_WEIGHT * (abs(off) - self._error)
        part = self._prompts_s(features) / price_s if features.num_prefill_tokens else None
        is_small = features.num_tokens <= self._split_num_tokens
        (self._small if is_small else self._large).learn(
            features, price_s, min(max(ratio, 1 / _MAX_RATIO), _MAX_RATIO)
        )
        self._note_swing(ratio, part)

    def _note_swing(self, ratio: float, part: float | None) -> None:
        """Scale what steps have been off by; `part` of the price is for prompts, None without."""
        self._num_without_prompts = self._num_without_prompts + 1 if part is None else 0
        factor = self._swing.note(ratio)
        if factor is not None:
            says_nothing = self._num_without_prompts >= NUM_ALIKE
            self._scale(factor, prompts=1.0 if says_nothing else factor)
        if part is not None:
            of_prompts = 1.0 + (ratio - 1.0) / max(part, _LEAST_PART)
            factor = self._prompts_swing.note(min(max(of_prompts, 1 / _MAX_RATIO), _MAX_RATIO))
            if factor is not None:
                self._scale(1.0, prompts=factor)

    def _prompts_s(self, features: StepFeatures) -> float:
        """Price what the prompts of a step add to it."""
        _, prefill, _, _, prefill_context, attended = self.coefficients(features)
        return (
            prefill * features.num_prefill_tokens
            + prefill_context * features.prefill_context_tokens
            + attended * features.prefill_attended_tokens
        )

    def _scale(self, factor: float, *, prompts: float) -> None:
        """Make the whole machine slower by `factor`, and what was too slow lately, as expected.

        What prompts add is made slower by `prompts`.
        """
        self._small.scale(factor, prompts)
        self._large.scale(factor, prompts)
        if prompts != 1.0:
            self._prompts_swing.clear()
        if factor == 1.0:
            return
        for index in range(len(self._swing)):
            self._ratios[-1 - index] /= factor
        self._sorted_ratios = sorted(self._ratios)
        self._swing.clear()

    def _note_ratio(self, ratio: float) -> None:
        self._ratios.append(ratio)
        insort(self._sorted_ratios, ratio)
        if len(self._ratios) > _MARGIN_WINDOW:
            oldest = self._ratios.popleft()
            del self._sorted_ratios[bisect_left(self._sorted_ratios, oldest)]
        count = len(self._sorted_ratios)
        if count >= _NUM_CALIBRATED:
            quantile = self._sorted_ratios[ceil(_MARGIN_QUANTILE * count) - 1]
            self._margin = min(max(quantile, MARGIN_BOUNDS[0]), MARGIN_BOUNDS[1])


def _chunk_line(
    coefficients: Coefficients, step: StepFeatures
) -> tuple[float, float, float, float]:
    """Say what a step costs, and each token of a chunk besides, its square, and its context."""
    intercept, prefill, decode, decode_context, prefill_context, attended = coefficients
    fixed_s = (
        intercept
        + prefill * step.num_prefill_tokens
        + decode * step.num_decode_tokens
        + decode_context * step.decode_context_tokens
        + prefill_context * step.prefill_context_tokens
        + attended * step.prefill_attended_tokens
    )
    return fixed_s, prefill + attended / 2, attended / 2, prefill_context


def _with_chunk(decodes: StepFeatures, num_tokens: int, context_tokens: int) -> StepFeatures:
    return StepFeatures(
        num_prefill_tokens=decodes.num_prefill_tokens + num_tokens,
        num_decode_tokens=decodes.num_decode_tokens,
        prefill_context_tokens=decodes.prefill_context_tokens + context_tokens,
        decode_context_tokens=decodes.decode_context_tokens,
        prefill_attended_tokens=decodes.prefill_attended_tokens
        + attended_tokens(context_tokens, num_tokens),
    )
