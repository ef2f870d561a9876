"""When batch work is forced up: as its window nears its end.

The batch band runs on what others leave, and a flood may leave it nothing. Its owner was promised
that it is done by the end of its window, as far as that can be. So as the time left nears the time
that the work needs, its requests are moved to the band `due`, one after the other. That band is
guaranteed a small share of the machine, and has no more of it while higher ones want the rest.

A tenant is sure of g, its part of that share by its weight among all that have such work. It needs
n: of its requests in the order in which their windows end, the most that (work up to one) over
(time left to begin it) comes to, less what it has harvested lately. It is forced up at the rate
2n - g, but for the bounds 0 and g: so from when it needs half of what it is sure of. Where nothing
is harvested, n then rises to g just as the work ends: it begins gently, and ends in time.

Work of others is not in that. A tenant that floods the batch band is forced up at its g at most,
and what it takes of the others' g is by its weight and not by its flood. What cannot be done in
time any more is left to be harvested.

Work is in the unit that tenants are charged in; the machine does as much of it in a second as it
did lately. Estimates of answers that turn out longer cost no more than the band's share.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from math import exp, floor, inf

from scheduler.order.fair_tree import FairTree
from scheduler.order.tree_node import Node
from scheduler.order.units import Unit
from scheduler.policies.bands import QUANTUM
from scheduler.request import Band, Member
from scheduler.sequence import Sequence

# Tenants are looked at this often, so many of them in a plan: at the weights of all first.
_REVIEW_S = 0.5
_MAX_WEIGHED = 128
_MAX_REVIEWED = 32
# Of a window: how much earlier than its end work is to be done.
_SPARE = 0.05
# A row does not run in each step, nor is each answer as short as expected.
_DRAWS_SPARE = 1.5
# Ends of windows are told apart by such a part of the window, and at least a second.
_GRID = 1 / 64
# What the machine does is averaged over so long, and what a tenant harvests over a part of the time
# that is left, within bounds.
_CAPACITY_S = 60.0
_HARVEST_PART = 1 / 8
_HARVEST_BOUNDS_S = (2.0, 60.0)
_LEAST_BUSY_S = 0.5

_Name = tuple[Member, str]


class _Cohort:
    """Hold requests of a tenant whose windows end together, and the work that each is."""

    __slots__ = ("end_s", "longest_output", "requests", "spare_s", "work")

    def __init__(self, end_s: float) -> None:
        self.end_s = end_s
        self.work = self.spare_s = self.longest_output = 0.0
        self.requests: dict[Sequence, float] = {}

    def add(self, sequence: Sequence, window_s: float, work: float) -> None:
        self.requests[sequence] = work
        self.work += work
        self.spare_s = max(self.spare_s, _SPARE * window_s)
        self.longest_output = max(self.longest_output, sequence.expected_output)

    def left_s(self, now: float, step_s: float, turn_s: float) -> float:
        """Say how much time is left to begin the last of them."""
        draws_s = _DRAWS_SPARE * self.longest_output * step_s
        return self.end_s - now - self.spare_s - turn_s - draws_s


class _Tenant:
    """Follow the windows of one tenant; rates are in work a second."""

    __slots__ = ("cohorts", "credit", "harvested", "node", "rate", "seen_s")

    def __init__(self, now: float) -> None:
        self.cohorts: dict[float, _Cohort] = {}
        # At most 0 between reviews: it is spent as long as there is work, and goes with the last.
        self.credit = 0.0
        # Its place in the batch band and what that had been served, once looked at.
        self.node: Node | None = None
        self.harvested = 0.0
        self.rate = 0.0
        self.seen_s = now

    def need(self, now: float, step_s: float, turn_s: float) -> tuple[float, float]:
        """Say at what rate its work must be done, and how much time is left for the first end.

        Steps take `step_s`, and the band earns its turn in `turn_s`.
        """
        need = work = 0.0
        first_left_s = inf
        for end_s in sorted(self.cohorts):
            cohort = self.cohorts[end_s]
            work += cohort.work
            left_s = cohort.left_s(now, step_s, turn_s)
            first_left_s = min(first_left_s, left_s)
            need = max(need, work / left_s if left_s > 0.0 else inf)
        return need, first_left_s

    def harvests(self, need: float, left_s: float, now: float) -> float:
        """Say at what rate it harvests lately; as fast as it needs when nothing is known."""
        assert self.node is not None
        served, span_s = self.node.served, now - self.seen_s
        if self.harvested < 0.0:
            self.rate = 0.0 if need == inf else need
        elif span_s > 0.0:
            low_s, high_s = _HARVEST_BOUNDS_S
            kept = exp(-span_s / min(high_s, max(low_s, _HARVEST_PART * left_s)))
            rate = max(0.0, served - self.harvested) / span_s
            self.rate += (rate - self.rate) * (1.0 - kept)
        self.harvested, self.seen_s = served, now
        return self.rate


class Windows:
    """Follow the requests whose windows end, and choose those that are forced up; see the module.

    It has to be told by `go_by` of what they are charged in and of the share they may have.
    """

    def __init__(self) -> None:
        self._tenants: dict[_Name, _Tenant] = {}
        self._cohort_of: dict[Sequence, tuple[_Name, _Cohort]] = {}
        self._to_weigh: list[_Name] = []
        self._to_review: list[_Name] = []
        # Of those who share the forced share, and for each the sum of its tenants' weights.
        self._total_weight = 0.0
        self._tenants_weight: dict[Node, float] = {}
        self._began_s = -inf
        self._served = self._busy_s = 0.0
        self._num_steps = 0
        # What was done lately, in how many seconds and steps; the past counts less and less.
        self._recent = (0.0, 0.0, 0.0)

    def go_by(self, share: float, tree: FairTree, unit: Unit, now: float) -> None:
        """Force up to `share` of the machine, and count work in `unit` as `tree` does."""
        self._share = share
        self._tree = tree
        self._unit = unit
        # Steps of before are not counted any more, since the work done in them is not.
        self._served, self._recent = tree.served, (0.0, 0.0, 0.0)
        self._busy_s, self._num_steps = 0.0, 0
        self._to_weigh.clear()
        self._to_review.clear()
        followed = list(self._cohort_of)
        self._cohort_of.clear()
        self._tenants.clear()
        for sequence in followed:
            self.join(sequence, now)

    def join(self, sequence: Sequence, now: float) -> None:
        """Follow a request of the batch band that has a window; what is expected of it is known."""
        request = sequence.request
        if request.finish_by_s is None or request.band is not Band.BATCH:
            return
        name = request.member, request.tenant_id
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant(now)
        window_s = max(0.0, request.finish_by_s - request.arrival_s)
        grid_s = max(1.0, _GRID * window_s)
        end_s = floor(request.finish_by_s / grid_s) * grid_s
        cohort = tenant.cohorts.get(end_s)
        if cohort is None:
            cohort = tenant.cohorts[end_s] = _Cohort(end_s)
        cohort.add(sequence, window_s, self._work_of(sequence))
        self._cohort_of[sequence] = name, cohort

    def leave(self, sequence: Sequence) -> None:
        """Forget a request, if it is followed."""
        found = self._cohort_of.pop(sequence, None)
        if found is None:
            return
        name, cohort = found
        cohort.work -= cohort.requests.pop(sequence)
        if not cohort.requests:
            tenant = self._tenants[name]
            del tenant.cohorts[cohort.end_s]
            if not tenant.cohorts:
                del self._tenants[name]

    def note_step(self, step_s: float) -> None:
        """Learn how long a step took."""
        self._busy_s += step_s
        self._num_steps += 1

    def take(self, now: float) -> Many[Sequence]:
        """Choose who is forced up now, and forget them; to be called once a step."""
        if not self._tenants or not self._share:
            return ()
        if not (self._to_weigh or self._to_review):
            if now - self._began_s < _REVIEW_S:
                return ()
            self._begin(now)
        self._weigh()
        if self._to_weigh:
            return ()
        _, busy_s, num_steps = self._recent
        chosen: list[Sequence] = []
        for _ in range(min(_MAX_REVIEWED, len(self._to_review))):
            tenant = self._tenants.get(self._to_review.pop())
            if tenant is not None and tenant.node is not None:
                chosen += self._review(tenant, tenant.node, busy_s / num_steps, now)
        return chosen

    def _begin(self, now: float) -> None:
        """Find what the machine does, and begin to look at everybody if that is known."""
        kept = exp(-min(now - self._began_s, 1e9) / _CAPACITY_S)
        served = self._tree.served
        work, busy_s, num_steps = (before * kept for before in self._recent)
        work += max(0.0, served - self._served)
        busy_s += self._busy_s
        self._recent = work, busy_s, num_steps + self._num_steps
        self._served, self._busy_s, self._num_steps, self._began_s = served, 0.0, 0, now
        if busy_s >= _LEAST_BUSY_S:
            self._to_review = list(self._tenants)
            self._to_weigh = self._to_review[:]
            self._total_weight = 0.0
            self._tenants_weight.clear()

    def _weigh(self) -> None:
        """Sum the weights of those that are to be reviewed, of a few in each plan."""
        sums = self._tenants_weight
        for _ in range(min(_MAX_WEIGHED, len(self._to_weigh))):
            tenant = self._tenants.get(self._to_weigh.pop())
            if tenant is None:
                continue
            if tenant.node is None:
                some = next(iter(next(iter(tenant.cohorts.values())).requests))
                tenant.node, tenant.harvested = self._tree.key_of(some).above, -1.0
            member = tenant.node.member
            if member not in sums:
                sums[member] = 0.0
                self._total_weight += member.weight
            sums[member] += tenant.node.weight

    def _part(self, node: Node) -> float:
        """Say what part of the share a tenant is sure of."""
        member = node.member
        return member.weight / self._total_weight * node.weight / self._tenants_weight[member]

    def _review(self, tenant: _Tenant, node: Node, step_s: float, now: float) -> list[Sequence]:
        """Let a tenant's credit grow at the rate that it is forced up, and spend it."""
        work, busy_s, _ = self._recent
        share = self._share * work / busy_s
        sure = share * self._part(node)
        need, left_s = tenant.need(now, step_s, QUANTUM / max(share, 1e-9))
        span_s = now - tenant.seen_s
        need -= tenant.harvests(need, left_s, now)
        forced = min(max(2.0 * need - sure, 0.0), sure)
        tenant.credit += forced * span_s
        chosen: list[Sequence] = []
        while tenant.credit > 0.0 and tenant.cohorts:
            sequence = self._pick(tenant, step_s, now)
            if sequence is None:
                break
            tenant.credit -= self._work_of(sequence)
            chosen.append(sequence)
        return chosen

    def _pick(self, tenant: _Tenant, step_s: float, now: float) -> Sequence | None:
        """Take out the request whose window ends first, of those that may be done by then."""
        while tenant.cohorts:
            cohort = tenant.cohorts[min(tenant.cohorts)]
            sequence = next(iter(cohort.requests))
            self.leave(sequence)
            num_left = sequence.expected_output - sequence.num_output_tokens
            finish_by_s = sequence.request.finish_by_s
            assert finish_by_s is not None
            if now + max(1.0, num_left) * step_s <= finish_by_s:
                return sequence
        return None

    def _work_of(self, sequence: Sequence) -> float:
        """Reckon what is left of a request."""
        num_had = sequence.num_computed or sequence.num_tokens - sequence.num_uncached
        prompt = self._unit.rest(sequence.num_tokens, num_had)
        num_left = sequence.expected_output - sequence.num_output_tokens
        return prompt + self._unit.output * max(1.0, num_left)
