"""What each of the tenants in the first ranks used, and what all others did together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from prometheus_client.metrics_core import Metric

from gateway.domain.timeline import Timeline
from gateway.telemetry import families
from gateway.telemetry.series import OTHER, class_of, metric_of
from gateway.telemetry.tenant_ranks import TenantRanks
from scheduler.order import BandShares

DEFAULT_SIZE: Final = 20


@dataclass(slots=True)
class _Sums:
    """Hold what a tenant used since it has its label."""

    tokens: dict[str, int] = field(default_factory=lambda: {"input": 0, "cached": 0, "output": 0})
    requests: dict[str, int] = field(default_factory=dict)
    slo: dict[str, int] = field(default_factory=dict)


class TenantMetrics:
    """Count by tenant; see `tenant_ranks` for which.

    `shares` say by model what tenants had of each band, on any thread.
    """

    def __init__(
        self,
        shares: Mapping[str, Callable[[], Sequence[BandShares]]],
        *,
        size: int = DEFAULT_SIZE,
    ) -> None:
        self._ranks = TenantRanks(size)
        self._shares = shares
        self._others = _Sums()
        self._sums: dict[UUID, _Sums] = {}

    def count(self, tenant_id: UUID, timeline: Timeline, outcome: str, now: float) -> None:
        """Count a request that has ended."""
        used = timeline.input_tokens + timeline.output_tokens
        sums = self._others
        if self._ranks.use(tenant_id, used, now):
            sums = self._sums_of(tenant_id)
        tokens = sums.tokens
        tokens["input"] += timeline.input_tokens
        tokens["cached"] += timeline.cached_tokens
        tokens["output"] += timeline.output_tokens
        sums.requests[outcome] = sums.requests.get(outcome, 0) + 1

    def judge(self, tenant_id: UUID, met: str) -> None:
        """Count a promise that was kept or not."""
        slo = self._sums.get(tenant_id, self._others).slo
        slo[met] = slo.get(met, 0) + 1

    def _sums_of(self, tenant_id: UUID) -> _Sums:
        sums = self._sums.get(tenant_id)
        if sums is None:
            first = self._ranks.first
            # Whoever lost its label has nothing to show any more. A new dictionary: a scrape may be
            # going through the old one.
            kept = {one: sums for one, sums in self._sums.items() if one in first}
            sums = kept[tenant_id] = _Sums()
            self._sums = kept
        return sums

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics by tenant, from any thread."""
        all_sums = [(str(tenant_id), sums) for tenant_id, sums in self._sums.items()]
        all_sums.append((OTHER, self._others))
        yield metric_of(
            families.TENANT_TOKENS,
            [((name, kind), n) for name, sums in all_sums for kind, n in list(sums.tokens.items())],
        )
        yield metric_of(
            families.TENANT_REQUESTS,
            [
                ((what, name), n)
                for name, sums in all_sums
                for what, n in list(sums.requests.items())
            ],
        )
        yield metric_of(
            families.TENANT_SLO,
            [((met, name), n) for name, sums in all_sums for met, n in list(sums.slo.items())],
        )
        yield metric_of(families.TRACKED, [((), len(all_sums) - 1)])
        yield from self._collect_shares(frozenset(name for name, _ in all_sums))

    def _collect_shares(self, labelled: frozenset[str]) -> Iterator[Metric]:
        entitled: dict[tuple[str, ...], float] = {}
        received: dict[tuple[str, ...], float] = {}
        jains: dict[tuple[str, ...], float] = {}
        numbers: dict[tuple[str, ...], float] = {}
        for model, shares in self._shares.items():
            for band in shares():
                where = (class_of(band.band), model)
                jains[where] = band.jain
                numbers[where] = band.num_tenants
                for one in band.tenants:
                    who = (*where, one.tenant_id if one.tenant_id in labelled else OTHER)
                    entitled[who] = entitled.get(who, 0.0) + one.entitled
                    received[who] = received.get(who, 0.0) + one.received
        for family, values in (
            (families.JAIN, jains),
            (families.BUSY_TENANTS, numbers),
            (families.ENTITLED, entitled),
            (families.RECEIVED, received),
        ):
            yield metric_of(family, values.items())
