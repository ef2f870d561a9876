"""One linear model of what steps take, by recursive least squares with directional forgetting.

A step takes the place of old ones only in the direction of its own features: ten thousand steps
that only decode neither wipe out what is known of prefills nor wind the covariance up. Errors are
relative, so that a short step counts as much as a long one. Coefficients stay at or above zero;
those of decodes above the prior's where that is below zero, for published fits have such.
Source: R. Kulhavy, "Restricted exponential forgetting in real-time identification", Automatica
23(5), 1987.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from operator import mul, sub

from engine.step_cost import LinearCost, StepFeatures

# Seconds a step, a prompt token, a decoded one, and a token of context of a row that decodes; for
# each that a chunk finds computed, and for each that a prompt token attends to.
Coefficients = tuple[float, float, float, float, float, float]

# Of the typical step: smaller coefficients may be as wrong as one of this size.
_SMALLEST_SHARE = 0.2
# Counts in a typical step bring the features to one scale: 1, prefill and decode tokens, the
# contexts of decodes and of prefills, what prompt tokens attend to.
_TYPICAL = (1.0, 256.0, 64.0, 32768.0, 8192.0, 262144.0)
# Those of prompts.
_PROMPTS = (1, 4, 5)


class Regime:
    """Hold coefficients, in seconds for a step and a count, and how sure they are.

    `doubt` is how wrong the prior's may be, in their own size, over the noise of a step;
    `forgetting` the weight that a step keeps when one like it is observed. Inside, features are
    divided by `_TYPICAL`, and times by `_unit_s`: what the prior says of the typical step.
    """

    __slots__ = ("_covariance", "_forgetting", "_lowest", "_shares", "_unit_s", "coefficients")

    def __init__(self, line: LinearCost, doubt: float, forgetting: float) -> None:
        self.coefficients: Coefficients = (
            max(line.intercept_s, 0.0),
            max(line.per_token_s + line.per_prefill_token_s, 0.0),
            line.per_token_s + line.per_decode_token_s,
            line.per_decode_context_token_s,
            max(line.per_prefill_context_token_s, 0.0),
            max(line.per_prefill_attended_token_s, 0.0),
        )
        typical_s = [c * count for c, count in zip(self.coefficients, _TYPICAL, strict=True)]
        self._unit_s = sum(map(abs, typical_s)) or 1e-3
        self._shares = [share_s / self._unit_s for share_s in typical_s]
        self._lowest = [min(share, 0.0) for share in self._shares]
        self._covariance = [[0.0] * len(_TYPICAL) for _ in _TYPICAL]
        for index, share in enumerate(self._shares):
            self._covariance[index][index] = (doubt * max(abs(share), _SMALLEST_SHARE)) ** 2
        self._forgetting = forgetting

    def learn(self, step: StepFeatures, price_s: float, ratio: float) -> None:
        """Learn from a step that took `ratio` times the price."""
        # Lists and written out: of six numbers, an array operation costs more than all six.
        scale = self._unit_s / price_s
        row = (
            scale,
            scale / _TYPICAL[1] * step.num_prefill_tokens,
            scale / _TYPICAL[2] * step.num_decode_tokens,
            scale / _TYPICAL[3] * step.decode_context_tokens,
            scale / _TYPICAL[4] * step.prefill_context_tokens,
            scale / _TYPICAL[5] * step.prefill_attended_tokens,
        )
        a, b, c, d, e, f = row
        direction = [
            a * line[0] + b * line[1] + c * line[2] + d * line[3] + e * line[4] + f * line[5]
            for line in self._covariance
        ]
        doubt = _dot(row, direction)
        if doubt < 1e-12:
            return
        move = (ratio - _dot(row, self._shares)) / (1 + doubt)
        self._shares = [share + move * d for share, d in zip(self._shares, direction, strict=True)]
        kept = self._forgetting
        shrink = (kept - (1 - kept) / doubt) / (kept * (1 + doubt))
        a, b, c, d, e, f = direction
        for line, other in zip(self._covariance, direction, strict=True):
            by = shrink * other
            line[:] = (
                line[0] - by * a,
                line[1] - by * b,
                line[2] - by * c,
                line[3] - by * d,
                line[4] - by * e,
                line[5] - by * f,
            )
        self._bound()
        self._publish()

    def _bound(self) -> None:
        """Lift coefficients that are too low, moving others as far as they are tied to them."""
        for _ in _TYPICAL:
            missing = list(map(sub, self._lowest, self._shares))
            most = max(missing)
            if most <= 1e-12:
                break
            index = missing.index(most)
            line = self._covariance[index]
            lift = most / line[index]
            self._shares = [s + lift * c for s, c in zip(self._shares, line, strict=True)]
        self._shares = list(map(max, self._shares, self._lowest))

    def scale(self, factor: float, prompts: float) -> None:
        """Make every step slower by `factor`, but what its prompts add to it by `prompts`."""
        self._unit_s *= factor
        by = prompts / factor
        for index in _PROMPTS if by != 1.0 else ():
            self._shares[index] *= by
            self._covariance[index] = [by * value for value in self._covariance[index]]
            for line in self._covariance:
                line[index] *= by
        self._publish()

    def max_prefill_tokens(
        self, base: StepFeatures, price_limit_s: float, context_tokens: int, high: int
    ) -> int:
        """Return the largest number up to `high` that keeps to the limit, were all steps ours."""
        intercept, prefill, decode, decode_context, prefill_context, attended = self.coefficients
        left_s = price_limit_s - (
            intercept
            + prefill * base.num_prefill_tokens
            + decode * base.num_decode_tokens
            + decode_context * base.decode_context_tokens
            + prefill_context * (base.prefill_context_tokens + context_tokens)
            + attended * base.prefill_attended_tokens
        )
        if left_s < 0.0:
            return 0
        # What n tokens add: linear * n + square * n².
        square = attended / 2
        linear = prefill + attended * context_tokens + square
        if left_s >= (linear + square * high) * high:
            return high
        return int(2 * left_s / (linear + sqrt(linear * linear + 4 * square * left_s)))

    def as_line(self) -> LinearCost:
        """Return the coefficients as a profile has them."""
        intercept, prefill, decode, decode_context, prefill_context, attended = self.coefficients
        return LinearCost(
            intercept_s=intercept,
            per_token_s=0.0,
            per_prefill_token_s=prefill,
            per_decode_token_s=decode,
            per_decode_context_token_s=decode_context,
            per_prefill_context_token_s=prefill_context,
            per_prefill_attended_token_s=attended,
        )

    def _publish(self) -> None:
        unit_s = self._unit_s
        intercept, prefill, decode, decode_context, prefill_context, attended = self._shares
        self.coefficients = (
            intercept * unit_s,
            prefill * (unit_s / _TYPICAL[1]),
            decode * (unit_s / _TYPICAL[2]),
            decode_context * (unit_s / _TYPICAL[3]),
            prefill_context * (unit_s / _TYPICAL[4]),
            attended * (unit_s / _TYPICAL[5]),
        )


def _dot(a: Iterable[float], b: Iterable[float]) -> float:
    total: float = sum(map(mul, a, b))
    return total
