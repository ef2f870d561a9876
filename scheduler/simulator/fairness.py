"""How evenly a run served its tenants, by the measures of the papers.

The difference of windows follows the artifact of Sheng et al., OSDI 2024 (fair_bench/plot,
visualize.py and plot_revision.py): the service of a request is spread evenly from its first token
to its last, windows of 60 s give rates, and a tenant counts by how far it is behind the best
served one or away from what it asked for, whichever is less, all for their weights, the mean of
which counts as one. The difference of intervals is the
quantity that the paper bounds: how far two tenants that both have requests waiting can drift
apart, from the logs, exact to the token. Both are between organisations where tenants have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from scheduler.request import Band, RejectCode
from scheduler.simulator.records import Record, Run

_WINDOW_S = 60.0
_NUM_WINDOWS = 20
# Pairs are compared one by one, so only those who had the most service are.
_MAX_MEMBERS = 64

_Floats = NDArray[np.float64]


def service_of_tenants(run: Run, *, until_s: float | None = None, since_s: float = 0.0) -> _Floats:
    """Add up what each tenant was served, in the run's unit, from the log."""
    times, tenants, amounts = _service(run)
    chosen = times >= since_s
    if until_s is not None:
        chosen &= times <= until_s
    # Its stubs think that sums of weights are integers.
    sums = np.bincount(tenants[chosen], weights=amounts[chosen], minlength=len(run.tenant_ids))
    return sums.astype(np.float64)


def service_differences(run: Run) -> list[float]:
    """Sum the differences of all tenants, in weighted tokens a second, window by window."""
    duration_s = run.workload.duration_s
    spans = _Spans.of(run)
    weights = np.array(run.members.weights)
    weights /= weights.mean() if len(weights) else 1.0
    half_s = _WINDOW_S / 2
    count = max(_NUM_WINDOWS, int(duration_s / _WINDOW_S))
    sums = []
    for index in range(1, count):
        centre_s = half_s + (duration_s - half_s) * index / count
        rates, demands = spans.rates(centre_s - half_s, centre_s + half_s)
        rates, demands = rates / weights, demands / weights
        behind = rates.max(initial=0.0) - rates
        sums.append(float(np.minimum(behind, np.abs(demands - rates)).sum()))
    return sums


def interval_service_difference(run: Run) -> float | None:
    """Find how far the service of two members, for their weights, drifted while both waited.

    None where no two ever did. Of many, the most served are compared.
    """
    members = _most_served(run)
    if len(members) < 2:
        return None
    service, waiting = _timelines(run, members)
    largest: float | None = None
    for first, second in combinations(range(len(members)), 2):
        both = waiting[:, first] & waiting[:, second]
        if not both.any():
            continue
        ahead = service[:, first] - service[:, second]
        edges = np.flatnonzero(np.diff(both.astype(np.int8), prepend=0, append=0))
        # Stretches in which both wait lie between every other pair of edges.
        bounds = np.minimum(edges, len(ahead) - 1)
        high = np.maximum.reduceat(ahead, bounds)[::2]
        low = np.minimum.reduceat(ahead, bounds)[::2]
        if edges[-1] > bounds[-1]:
            # The last stretch lasts to the end, where reduceat sees one element alone.
            high[-1], low[-1] = ahead[edges[-2] :].max(), ahead[edges[-2] :].min()
        largest = max(largest or 0.0, float((high - low).max()))
    return largest


def jain(run: Run) -> float | None:
    """Compute Jain's index of service over fair shares, in the time in which requests came.

    A fair share is the weighted max-min share of all that was served: nobody gets more than it
    asked for, and who asks for more gets equally much for its weight.
    """
    duration_s = run.workload.duration_s or run.end_s
    demand = np.zeros(len(run.tenant_ids))
    for record in run.records:
        cost = run.unit.prompt(record.arrival.num_prompt_tokens, 0)
        demand[record.tenant] += cost + run.output_cost * record.arrival.num_output_tokens
    service = service_of_tenants(run, until_s=duration_s)
    shares = _fair_shares(run, demand, float(service.sum()))
    served = service[shares > 0] / shares[shares > 0]
    squares = float((served**2).sum())
    return float(served.sum()) ** 2 / (len(served) * squares) if squares else None


def entitlements(run: Run) -> _Floats:
    """Say what each tenant should have had of all that was served, in the run's unit.

    Bands first: each is given its guaranteed share, and what is left goes to the highest that
    asked for more. In a band it is the weighted max-min share. Demand is what was asked for over
    the whole run, refused requests included but for those that could never be served: nobody is
    entitled to what it did not ask for.
    """
    demands = np.zeros((len(Band), len(run.tenant_ids)))
    for record in run.records:
        demands[record.arrival.band, record.tenant] += _demand(record, run)
    total = float(service_of_tenants(run).sum())
    asked = demands.sum(axis=1)
    guaranteed = [run.band_shares.get(band, 0.0) * total for band in Band]
    given = np.minimum(asked, guaranteed)
    for band in Band:
        given[band] += min(asked[band] - given[band], total - float(given.sum()))
    entitled = np.zeros(len(run.tenant_ids))
    for band in Band:
        entitled += _fair_shares(run, demands[band], float(given[band]))
    return entitled


def _demand(record: Record, run: Run) -> float:
    """Price what a request asked for, as it would have been charged."""
    if record.reject is RejectCode.CONTEXT_LENGTH_EXCEEDED:
        return 0.0
    arrival = record.arrival
    num_output_tokens = arrival.num_output_tokens
    if arrival.cancel_after_tokens is not None:
        num_output_tokens = min(num_output_tokens, arrival.cancel_after_tokens)
    cost = run.unit.prompt(arrival.num_prompt_tokens, record.num_cached_tokens)
    return cost + run.output_cost * num_output_tokens


def _fair_shares(run: Run, demand: _Floats, total: float) -> _Floats:
    """Divide `total` between organisations, and what each gets between its tenants."""
    grouped = run.members
    members, weights = np.array(grouped.of_tenants, dtype=np.intp), np.array(run.weights)
    num_members = len(grouped.weights)
    demands = np.bincount(members, weights=demand, minlength=num_members).astype(np.float64)
    given = fair_shares(demands, np.array(grouped.weights), total)
    shares = given[members]
    for member in np.flatnonzero(np.bincount(members, minlength=num_members) > 1).tolist():
        mine = members == member
        shares[mine] = fair_shares(demand[mine], weights[mine], given.item(member))
    return shares


def fair_shares(demand: _Floats, weights: _Floats, total: float) -> _Floats:
    """Divide `total` by weights so that nobody gets more than its demand."""
    shares = np.zeros_like(demand)
    level = demand / weights
    left = min(total, float(demand.sum()))
    open_weight = float(weights.sum())
    for tenant in np.argsort(level, kind="stable"):
        shares[tenant] = min(demand[tenant], left * weights[tenant] / open_weight)
        left -= shares[tenant]
        open_weight -= weights[tenant]
    return shares


@dataclass(frozen=True, slots=True)
class _Spans:
    """Hold requests as spans of service: whose, how much, and from when to when."""

    num_members: int
    members: NDArray[np.int64]
    arrivals_s: _Floats
    demands: _Floats
    begins_s: _Floats
    ends_s: _Floats
    amounts: _Floats

    @classmethod
    def of(cls, run: Run) -> _Spans:
        records, prices, members = run.records, run.prices, run.members
        return cls(
            len(members.weights),
            np.array([members.of_tenants[r.tenant] for r in records], dtype=np.int64),
            np.array([r.arrival.at_s for r in records]),
            np.array(
                [
                    prices.input * r.arrival.num_prompt_tokens
                    + prices.output * r.arrival.num_output_tokens
                    for r in records
                ]
            ),
            np.array([r.first_s if r.has_begun else np.inf for r in records]),
            # A single token has a span too.
            np.array([max(r.last_s, r.first_s + 1e-5) if r.has_begun else np.inf for r in records]),
            np.array(
                [
                    prices.input * r.arrival.num_prompt_tokens + prices.output * r.num_output_tokens
                    if r.has_begun
                    else 0.0
                    for r in records
                ]
            ),
        )

    def rates(self, begin_s: float, end_s: float) -> tuple[_Floats, _Floats]:
        """Return what each member was served and what it asked for, a second, in a window."""
        window_s = end_s - begin_s
        overlap = np.minimum(end_s, self.ends_s) - np.maximum(begin_s, self.begins_s)
        hit = overlap > 0
        served = self.amounts[hit] * overlap[hit] / (self.ends_s[hit] - self.begins_s[hit])
        asked = (self.arrivals_s >= begin_s) & (self.arrivals_s <= end_s)
        rates = np.bincount(self.members[hit], weights=served, minlength=self.num_members)
        demands = np.bincount(
            self.members[asked], weights=self.demands[asked], minlength=self.num_members
        )
        return rates / window_s, demands / window_s


def _service(run: Run) -> tuple[_Floats, NDArray[np.int32], _Floats]:
    log = run.service
    return (
        np.frombuffer(log.times_s, dtype=np.float64),
        np.frombuffer(log.tenants, dtype=np.int32),
        np.frombuffer(log.amounts, dtype=np.float64),
    )


def _most_served(run: Run) -> list[int]:
    grouped = run.members
    service = np.bincount(
        np.array(grouped.of_tenants, dtype=np.intp),
        weights=service_of_tenants(run),
        minlength=len(grouped.weights),
    )
    order = np.argsort(-service, kind="stable")[:_MAX_MEMBERS]
    return [int(member) for member in order if service[member] > 0]


def _timelines(run: Run, members: list[int]) -> tuple[_Floats, NDArray[np.bool_]]:
    """Return service for its weight and who has requests waiting, after each moment of the logs.

    Both: [num_moments, num_members].
    """
    times, service_tenants, amounts = _service(run)
    queue_times = np.frombuffer(run.queue.times_s, dtype=np.float64)
    queue_tenants = np.frombuffer(run.queue.tenants, dtype=np.int32)
    changes = np.frombuffer(run.queue.changes, dtype=np.int32)
    moments = np.unique(np.concatenate((times, queue_times)))
    grouped = run.members
    of_members = np.full(len(grouped.weights), -1)
    of_members[members] = range(len(members))
    # By tenant, from here on.
    column = of_members[grouped.of_tenants]
    shape = (len(moments), len(members))
    service, waiting = np.zeros(shape), np.zeros(shape, dtype=np.int32)
    chosen = column[service_tenants] >= 0
    rows = np.searchsorted(moments, times[chosen])
    np.add.at(service, (rows, column[service_tenants[chosen]]), amounts[chosen])
    chosen = column[queue_tenants] >= 0
    rows = np.searchsorted(moments, queue_times[chosen])
    np.add.at(waiting, (rows, column[queue_tenants[chosen]]), changes[chosen])
    weights = np.array([grouped.weights[member] for member in members])
    return service.cumsum(axis=0) / weights, waiting.cumsum(axis=0) > 0
