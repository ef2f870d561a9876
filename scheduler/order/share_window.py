"""Whether tenants had what they were entitled to: over windows of a minute, band by band.

Looked at are the tenants that had a live request throughout a window. What one is entitled to is
its part, by weight, of what all of them were served in it; a tenant of an organisation weighs its
organisation's weight times its own among the tenants of it that are looked at. Who had less and
wanted no more, since nothing of it waited throughout and none of its rows was held back for
others, is entitled to what it had, and the rest is divided among the others: the fairest division
there is (max-min). Over those others Jain's index of received over entitled is 1 where all ratios
are alike, and 1/n where one of n has everything.

Source: Jain, Chiu and Hawe, A Quantitative Measure of Fairness and Discrimination for Resource
Allocation in Shared Computer Systems, DEC TR-301, 1984.

A window costs a copy of the counters at its beginning and a few operations on them at its end,
whatever became of requests in between. Where nothing is planned or read it goes on for longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.order.fair_tree import FairTree
from scheduler.order.tree_node import Level, Node
from scheduler.request import Band

WINDOW_S = 60.0
MAX_TENANTS = 20
_Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShare:
    """Tell of a tenant's part of its band's service; see the module.

    `wanted_more` tells that something of it waited throughout, or rows of it were held back.
    """

    tenant_id: str
    organisation_id: str
    weight: float
    received: float
    entitled: float
    wanted_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BandShares:
    """Tell how a band was shared between `num_tenants`; `tenants` are those that had the most.

    `jain` is the index over those that were not content; 1 where there are fewer than two.
    """

    band: Band
    began_s: float
    ended_s: float
    num_tenants: int
    jain: float
    tenants: tuple[TenantShare, ...]


class ShareWindow:
    """Follow a tree window by window; `last` is of the latest that has ended."""

    def __init__(self, tree: FairTree, last: tuple[BandShares, ...] = ()) -> None:
        self._tree = tree
        self._served: _Column | None = None
        self._began_s = 0.0
        self.last = last
        self.ends_s = -np.inf

    def roll(self, now: float) -> None:
        """End the window whose time is over, and begin another; to be called once it is."""
        counters = self._tree.columns
        if self._served is not None:
            self.last = tuple(self._look(self._served, now))
        self._served = counters.served.copy()
        counters.was_held[:] = False
        self._began_s, self.ends_s = now, now + WINDOW_S

    def _look(self, served_before: _Column, now: float) -> Iterator[BandShares]:
        columns, began_s = self._tree.columns, self._began_s
        # An entry that was open throughout is that of the same tenant; columns may have grown.
        is_busy = columns.busy_since_s[: len(served_before)] <= began_s
        is_busy &= columns.levels[: len(served_before)] == Level.TENANT
        tenants = np.flatnonzero(is_busy)
        received = np.maximum(columns.served[tenants] - served_before[tenants], 0.0)
        above = columns.above[tenants]
        wanted = columns.waiting_since_s[tenants] <= began_s
        # Rows are held member by member: of an organisation those of all its tenants.
        wanted |= columns.was_held[tenants] | columns.was_held[above]
        weights = self._weights(tenants)
        bands = columns.bands[tenants]
        for band in np.unique(bands).tolist():
            among = np.flatnonzero(bands == band)
            total = float(received[among].sum())
            if total <= 0.0:
                continue
            had = received[among] / total
            entitled, is_content = divide(had, weights[among], wanted[among])
            most = np.argsort(-had, kind="stable")[:MAX_TENANTS].tolist()
            nodes = [self._tree.node_of(tenants.item(among.item(place))) for place in most]
            yield BandShares(
                band=Band(band),
                began_s=began_s,
                ended_s=now,
                num_tenants=len(among),
                jain=jain(had[~is_content], entitled[~is_content]),
                tenants=tuple(
                    TenantShare(
                        tenant_id=node.name,
                        organisation_id=_organisation_of(node),
                        weight=node.weight,
                        received=had.item(place),
                        entitled=entitled.item(place),
                        wanted_more=bool(wanted[among[place]]),
                    )
                    for place, node in zip(most, nodes, strict=True)
                ),
            )

    def _weights(self, tenants: NDArray[np.intp]) -> _Column:
        columns = self._tree.columns
        weights: _Column = columns.weights[tenants]
        above = columns.above[tenants]
        is_in_one = columns.levels[above] == Level.ORGANISATION
        if is_in_one.any():
            own, above = weights[is_in_one], above[is_in_one]
            sums = np.bincount(above, weights=own)
            weights[is_in_one] = columns.weights[above] * own / sums[above]
        return weights


def divide(
    had: _Column, weights: _Column, wanted: NDArray[np.bool_]
) -> tuple[_Column, NDArray[np.bool_]]:
    """Divide 1 by weight, but for who had less of it than that and wanted no more, [tenants].

    Returns: what each is entitled to, and who of them was content with less than its weight says.
    """
    is_content = np.zeros(len(had), dtype=bool)
    while True:
        left = 1.0 - float(had[is_content].sum())
        part: _Column = left * weights / max(float(weights[~is_content].sum()), 1e-300)
        newly = ~is_content & ~wanted & (had < part)
        if not newly.any() or (newly | is_content).all():
            return np.where(is_content, had, part), is_content
        is_content |= newly


def jain(had: _Column, entitled: _Column) -> float:
    """Say how even the ratios of what each had to what it was entitled to are, from 1/n to 1."""
    if len(had) < 2:
        return 1.0
    ratios = had / np.maximum(entitled, 1e-300)
    squares = float((ratios * ratios).sum())
    return float(ratios.sum()) ** 2 / (len(ratios) * squares) if squares else 1.0


def _organisation_of(tenant: Node) -> str:
    return tenant.above.name if tenant.above.level is Level.ORGANISATION else ""
