"""Fits what steps cost to measured steps, and writes it down as a profile.

Least squares on relative errors, with no coefficient below zero: outside of what was measured a
fit may be wrong, but no step gets cheaper by having more to do. A step that took far longer than
the fit says counts as twice as long. Two regimes are kept only where they predict steps that they
were not fitted to clearly better than one does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.step_cost import LinearCost, StepCost, StepFeatures

Sample = tuple[StepFeatures, float]

_NUM_FOLDS = 5
_NUM_COEFFICIENTS = 6
# Of each regime, for a coefficient; of all in each fold.
_MIN_SAMPLES = 3 * _NUM_COEFFICIENTS
_BETTER_BY = 0.8


@dataclass(frozen=True, slots=True)
class Fit:
    """Hold a fitted cost and how far off it is on samples that it was not fitted to.

    `held_out_mape` is the mean absolute error relative to what was measured: of five fits, each to
    four fifths of the samples, on the other fifth.
    """

    cost: StepCost
    held_out_mape: float


def fit(samples: Sequence[Sample], *, name: str, split_num_tokens: Sequence[int] = (512,)) -> Fit:
    """Fit a cost to measured steps, each given by its features and its seconds.

    Args: `split_num_tokens`: where two regimes may meet, in tokens; the best is taken. Repeated
    measurements of one step belong into one sample, or the held-out error is none.
    Raises: `ValueError`: fewer than 25 samples, or one that took no time.
    """
    if len(samples) < _NUM_FOLDS * (_NUM_COEFFICIENTS - 1):
        raise ValueError(f"{len(samples)} samples are too few to fit a step's cost to")
    if any(step_s <= 0 for _, step_s in samples):
        raise ValueError("a step takes time")
    best = _cross_validate(samples, name, None)
    for split in split_num_tokens:
        num_small = sum(step.num_tokens <= split for step, _ in samples)
        if min(num_small, len(samples) - num_small) < _MIN_SAMPLES:
            continue
        found = _cross_validate(samples, name, split)
        bar = best.held_out_mape * (_BETTER_BY if best.cost.small == best.cost.large else 1.0)
        if found.held_out_mape < bar:
            best = found
    return best


def save_profile(cost: StepCost, path: Path, *, source: str, estimate: bool = False) -> None:
    """Write a profile that `engine.step_cost.load_profile` reads, once it lies in its folder.

    `source` says in words what was measured, on what; `estimate` that nothing was.
    """
    profile = {
        "name": cost.name,
        "source": source,
        "estimate": estimate,
        "split_num_tokens": cost.split_num_tokens,
        "small": asdict(cost.small),
        "large": asdict(cost.large),
    }
    path.write_text(json.dumps(profile, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _cross_validate(samples: Sequence[Sample], name: str, split: int | None) -> Fit:
    errors = []
    for fold in range(_NUM_FOLDS):
        kept = [sample for i, sample in enumerate(samples) if i % _NUM_FOLDS != fold]
        cost = _fit_regimes(kept, name, split)
        errors += [
            abs(cost.price_s(step) / step_s - 1) for step, step_s in samples[fold::_NUM_FOLDS]
        ]
    return Fit(_fit_regimes(samples, name, split), sum(errors) / len(errors))


def _fit_regimes(samples: Sequence[Sample], name: str, split: int | None) -> StepCost:
    if split is None:
        line = _fit_line(samples)
        return StepCost(name, line, line)
    small = _fit_line([sample for sample in samples if sample[0].num_tokens <= split])
    large = _fit_line([sample for sample in samples if sample[0].num_tokens > split])
    return StepCost(name, small, large, split_num_tokens=split)


def _fit_line(samples: Sequence[Sample]) -> LinearCost:
    # [num_samples, 6]
    rows = np.array(
        [
            (
                1.0,
                step.num_prefill_tokens,
                step.num_decode_tokens,
                step.decode_context_tokens,
                step.prefill_context_tokens,
                step.prefill_attended_tokens,
            )
            for step, _ in samples
        ]
    )
    measured_s = np.array([step_s for _, step_s in samples])
    # Relative to what was measured first, which a hiccup cannot bend; then to the fit.
    unit_s, clipped_s = measured_s, measured_s
    for _ in range(3):
        found = _non_negative(rows / unit_s[:, None], clipped_s / unit_s)
        unit_s = np.maximum(rows @ found, 1e-9)
        clipped_s = np.clip(measured_s, unit_s / 2, unit_s * 2)
    intercept, prefill, decode, decode_context, prefill_context, attended = found.tolist()
    return LinearCost(
        intercept_s=intercept,
        per_token_s=0.0,
        per_prefill_token_s=prefill,
        per_decode_token_s=decode,
        per_decode_context_token_s=decode_context,
        per_prefill_context_token_s=prefill_context,
        per_prefill_attended_token_s=attended,
    )


def _non_negative(rows: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve least squares for coefficients ≥ 0: try every set of those that may be above it."""
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    scaled = rows / scale
    best, best_error = np.zeros(_NUM_COEFFICIENTS), float(targets @ targets)
    for size in range(1, _NUM_COEFFICIENTS + 1):
        for columns in combinations(range(_NUM_COEFFICIENTS), size):
            found, *_ = np.linalg.lstsq(scaled[:, columns], targets, rcond=None)
            error = float(np.sum((scaled[:, columns] @ found - targets) ** 2))
            if found.min() >= 0 and error < best_error:
                best, best_error = np.zeros(_NUM_COEFFICIENTS), error
                best[list(columns)] = found
    found_s: NDArray[np.float64] = best / scale
    return found_s
