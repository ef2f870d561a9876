"""How much of a step's decoding each tenant may have, in seconds by the step model.

Weighted max-min: a tenant's rows run as far as a level that is the same for all, for their weights.
The level is what the least of the tenants asks for, so those that ask for more are held to its
share, and is then raised until two bounds hold. What a step costs whoever runs in it, `fixed_s`, is
paid for fewer tokens where rows sit out:

- The share of its time that the machine works falls by `max_loss` at most. Where those whom it is
  lost for weigh less than half, by less in proportion: one light tenant among a hundred heavy ones
  is not worth a fifth of the machine.
- Steps must get shorter by a larger part than the one that is lost. For a work W of which S is left
  that is S >= fixed² / W: where rows cost less than what is paid for any step, as on a GPU that
  reads its weights for one row or a hundred, nobody sits out.

Source: water filling, as in Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]
Loss = TypeVar("Loss", float, Seconds)

NO_LEVEL = np.inf


def least_work_s(work_s: float, fixed_s: float, max_loss: Loss) -> Loss:
    """Say how much of the decoding of a step must be left, so that no more than that is lost.

    `work_s` is that of all rows; the rest of the step is `fixed_s`.
    """
    busy = (1.0 - max_loss) * (work_s / (fixed_s + work_s))
    return fixed_s * busy / (1.0 - busy)


def max_loss_for(max_loss: float, light: Loss) -> Loss:
    """Say what may be lost for those who have this part of all weight."""
    part: Loss = np.minimum(1.0, 2.0 * light)
    return max_loss * part


def worthwhile_work_s(work_s: float, fixed_s: float) -> float:
    """Say how much must be left for others to gain more than is lost."""
    return min(work_s, fixed_s * fixed_s / work_s)


def fair_level(
    asked_s: Seconds, weights: Seconds, wanted_s: Seconds, fixed_s: float, max_loss: float
) -> float:
    """Find the level that nobody's rows may pass, in seconds of a step for a weight of 1.

    Args: `asked_s`: what each tenant's rows would have of a step, [tenants]. `wanted_s`: with those
    that wait for a slot; who waits is not served better by slots that are given back later.
    Returns: `NO_LEVEL` where all rows run.
    """
    work_s = float(asked_s.sum())
    levels = asked_s / weights
    least = float((wanted_s / weights).min())
    if levels.max() <= least:
        return NO_LEVEL
    order = levels.argsort()
    levels, heavy, asked, left = _steps(levels, weights, asked_s, order)
    # Of the level of each tenant in turn: the part by weight of those that run all of theirs.
    light = 1.0 - heavy / weights.sum()
    needed = least_work_s(work_s, fixed_s, max_loss_for(max_loss, light))
    needed = np.maximum(needed, worthwhile_work_s(work_s, fixed_s))
    is_enough = (levels >= least) & (left >= needed * (1.0 - 1e-9))
    at = int(is_enough.argmax())
    if at == 0:
        return float(levels[0])
    below = at - 1
    level = max(least, float((needed[below] - asked[below]) / heavy[below]))
    level = min(level, float(levels[at]))
    return NO_LEVEL if level >= levels[-1] else level


def level_for(asked_s: Seconds, weights: Seconds, amount_s: float) -> float:
    """Find the level at which tenants have so much together; `NO_LEVEL` for all they ask for."""
    if amount_s >= asked_s.sum():
        return NO_LEVEL
    levels = asked_s / weights
    order = levels.argsort()
    levels, heavy, asked, left = _steps(levels, weights, asked_s, order)
    at = int(left.searchsorted(amount_s))
    if at == 0:
        return amount_s / float(weights.sum())
    if at == len(levels):
        return NO_LEVEL  # Less than the sum by the rounding of another order of adding.
    return float((amount_s - asked[at - 1]) / heavy[at - 1])


def held_to(asked_s: Seconds, weights: Seconds, level: float) -> Seconds:
    """Say what each tenant has at a level."""
    return asked_s if level == NO_LEVEL else np.minimum(asked_s, weights * level)


def _steps(
    levels: Seconds, weights: Seconds, asked_s: Seconds, order: NDArray[np.intp]
) -> tuple[Seconds, Seconds, Seconds, Seconds]:
    """Say for the level of each tenant, the least first: it, and of those that ask for more the
    weight; what the others ask for; and what all have at that level together.
    """
    levels = levels[order]
    weight = weights[order].cumsum()
    asked = asked_s[order].cumsum()
    heavy = weight[-1] - weight
    return levels, heavy, asked, asked + levels * heavy
