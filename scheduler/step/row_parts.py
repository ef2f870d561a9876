"""What each tenant's rows have of a step, by what all of them ask for.

Weighted max-min inside a band (`scheduler.step.water_level`), with what their prompts cost lately
counted as rows. Bands come first: a lower one has what higher ones leave of the least that must be
done, and its guaranteed share of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.config import FairnessConfig
from scheduler.request import Band
from scheduler.running import RunningSet
from scheduler.step.recent_prefills import RecentPrefills
from scheduler.step.water_level import (
    Seconds,
    fair_level,
    held_to,
    least_work_s,
    level_for,
    max_loss_for,
    worthwhile_work_s,
)


class TenantRows(NamedTuple):
    """Hold columns of tenants that have rows or will soon.

    In seconds of a step `asked_s` is what their rows cost, `prefilled_s` what their prompts did
    lately, and `wanted_s` both together with those that wait for a slot.
    """

    entries: NDArray[np.intp]
    asked_s: Seconds
    weights: Seconds
    prefilled_s: Seconds
    wanted_s: Seconds
    bands: NDArray[np.intc]

    def of_band(self, band: int) -> TenantRows:
        return self.among(self.bands == band)

    def among(self, which: NDArray[np.bool_]) -> TenantRows:
        return TenantRows(
            self.entries[which],
            self.asked_s[which],
            self.weights[which],
            self.prefilled_s[which],
            self.wanted_s[which],
            self.bands[which],
        )

    def beside(self, others: TenantRows) -> TenantRows:
        """Put others behind these."""
        return TenantRows(
            np.concatenate((self.entries, others.entries)),
            np.concatenate((self.asked_s, others.asked_s)),
            np.concatenate((self.weights, others.weights)),
            np.concatenate((self.prefilled_s, others.prefilled_s)),
            np.concatenate((self.wanted_s, others.wanted_s)),
            np.concatenate((self.bands, others.bands)),
        )


class RowParts:
    """Say how much of a step the rows of tenants have."""

    def __init__(
        self, config: FairnessConfig, running: RunningSet, prefills: RecentPrefills
    ) -> None:
        self._max_loss = config.max_throughput_loss
        self._band_shares = config.band_shares
        self._running = running
        self._prefills = prefills

    def of(self, tenants: TenantRows, fixed_s: float, most_s: float, *, shares: bool) -> Seconds:
        """Say what each tenant's rows have of the step."""
        asked_s = tenants.asked_s
        if shares:
            asked_s = self._by_band(tenants, fixed_s)
        if asked_s.sum() <= most_s:
            return asked_s
        return held_to(asked_s, tenants.weights, level_for(asked_s, tenants.weights, most_s))

    def _by_band(self, tenants: TenantRows, fixed_s: float) -> Seconds:
        """Let the highest band have what is fair between its tenants.

        Those below have what it leaves of what must be done, or their shares of all.
        """
        bands = np.unique(tenants.bands).tolist()
        top = tenants.of_band(bands[0]) if len(bands) > 1 else tenants
        held_s = self._fair(top, fixed_s)
        if len(bands) == 1:
            return held_s
        work_s, used_s = float(tenants.asked_s.sum()), float(held_s.sum())
        loss = max_loss_for(self._max_loss, float(top.weights.sum() / tenants.weights.sum()))
        needed_s = least_work_s(work_s, fixed_s, loss)
        needed_s = max(needed_s, worthwhile_work_s(work_s, fixed_s))
        needed_s = min(needed_s, float(self._fair(tenants, fixed_s, brings=False).sum()))
        parts_s = np.zeros(len(tenants.entries))
        parts_s[tenants.bands == bands[0]] = held_s
        shares = [self._band_shares.get(Band(band), 0.0) for band in bands]
        for number, band in enumerate(bands[1:], 1):
            own = tenants.of_band(band)
            left_s = (1.0 - sum(shares[number + 1 :])) * needed_s - used_s
            part_s = max(left_s, used_s * shares[number] / (1.0 - shares[number]))
            level = level_for(own.asked_s, own.weights, part_s)
            held_s = held_to(own.asked_s, own.weights, level)
            parts_s[tenants.bands == band] = held_s
            used_s += float(held_s.sum())
        return parts_s

    def _fair(self, tenants: TenantRows, fixed_s: float, *, brings: bool = True) -> Seconds:
        """Say what rows have where bands make no difference, with what they bring or without."""
        asked_s = tenants.asked_s + tenants.prefilled_s
        level = fair_level(asked_s, tenants.weights, tenants.wanted_s, fixed_s, self._max_loss)
        parts_s = _part(tenants, level)
        brought = np.zeros(len(parts_s))
        if brings:
            brought = self._prefills.per_decode(tenants.entries, self._running.num_steps)
        return self._enough(tenants, parts_s, brought, fixed_s)

    def _enough(
        self, tenants: TenantRows, parts_s: Seconds, brought: Seconds, fixed_s: float
    ) -> Seconds:
        """Raise parts that are too small for what may be lost in tokens.

        Prompts are work where rows that are held bring them, and who has most of those has no more
        of what is left for them. Prompts of others come whoever decodes: were they to count, who
        sends many would take rows from others.
        """
        with_prompts = np.where(parts_s < tenants.asked_s, 1.0 + brought, 1.0)
        asked_s = tenants.asked_s * with_prompts
        needed_s = least_work_s(float(asked_s.sum()), fixed_s, self._max_loss)
        if float(parts_s @ with_prompts) >= needed_s:
            return parts_s
        level = level_for(asked_s, tenants.weights, needed_s)
        enough_s = held_to(asked_s, tenants.weights, level) / with_prompts
        raised_s: Seconds = np.maximum(parts_s, enough_s)
        return raised_s


def _part(tenants: TenantRows, level: float) -> Seconds:
    """Say what rows have at a level that their tenants' prompts count towards as well."""
    if level == np.inf:
        return tenants.asked_s
    left_s = tenants.weights * level - tenants.prefilled_s
    part_s: Seconds = np.minimum(np.maximum(left_s, 0.0), tenants.asked_s)
    return part_s
