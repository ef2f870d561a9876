"""When batch work is forced up: by its window, what was harvested, and never by others' work."""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from dataclasses import replace
from itertools import count

import pytest

import fakes
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from scheduler.config import FairnessConfig, Prices
from scheduler.order import FairTree, Node, Tokens, Windows
from scheduler.order.windows import _Cohort, _Tenant
from scheduler.request import Band
from scheduler.sequence import Sequence

_INFO = fakes.make_engine().info
_POOL = BlockPool(32, 4)
_ordinals = count()
# Work a second that the machine does, and the part of it that may be forced.
_CAPACITY, _SHARE = 10_000.0, 0.05
_SURE = _SHARE * _CAPACITY
_TICK_S = 0.5
# 3 tokens of a prompt, and 215 of an answer at 2 each.
_WORK = 433.0


def sequence(
    tenant: str,
    finish_by_s: float | None,
    *,
    band: Band = Band.BATCH,
    num_output: int = 215,
    weight: float = 1.0,
    organisation: str = "",
) -> Sequence:
    name = f"{tenant}-{next(_ordinals)}"
    request = replace(
        fakes.make_request(
            name, tenant_id=tenant, band=band, finish_by_s=finish_by_s, weight=weight
        ),
        organisation_id=organisation,
    )
    table = BlockTable(_POOL, b"")
    made = Sequence(request, table, ordinal=next(_ordinals), max_len=64, info=_INFO)
    made.expected_output = float(num_output)
    return made


class Machine:
    """Serve a flood of others, and tell `windows` of it, in steps of 10 ms."""

    def __init__(self, share: float = _SHARE) -> None:
        self.tree = FairTree(FairnessConfig())
        self.windows = Windows()
        self.windows.go_by(share, self.tree, Tokens(Prices()), 0.0)
        self.now = 0.0
        self.flood = sequence("online", None, band=Band.DEFAULT)
        self.tree.enrol(self.flood, 0.0)
        self.forced: list[tuple[float, Sequence]] = []

    def join(self, *sequences: Sequence) -> Many[Sequence]:
        for one in sequences:
            self.tree.enrol(one, self.now)
            self.windows.join(one, self.now)
        return sequences

    def run(self, until_s: float, *, harvests: tuple[Sequence, float] | None = None) -> None:
        """Go on; of `harvests` so much is served a second besides."""
        while self.now < until_s:
            self.now += _TICK_S
            if self.now <= _TICK_S:
                # Too little is known of the machine before anything has run.
                self.forced += [(self.now, one) for one in self.windows.take(self.now)]
            for _ in range(50):
                self.windows.note_step(_TICK_S / 50)
            self.tree.charge(self.flood, _CAPACITY * _TICK_S, self.now)
            if harvests is not None:
                self.tree.charge(harvests[0], harvests[1] * _TICK_S, self.now)
            self.forced += [(self.now, one) for one in self.windows.take(self.now)]

    def forced_of(self, tenant: str) -> list[float]:
        return [at_s for at_s, one in self.forced if one.request.tenant_id == tenant]


class CountedTree(FairTree):
    """Count how often somebody is looked up."""

    num_found = 0

    def key_of(self, sequence: Sequence) -> Node:
        self.num_found += 1
        return super().key_of(sequence)


def test_nothing_is_forced_up_while_half_the_share_would_do() -> None:
    """433 of work at 250 a second take 1.7 s; of a window of 1,000 s, 61 s are kept to spare."""
    machine = Machine()
    machine.join(sequence("a", 1000.0))
    machine.run(930.0)
    assert not machine.forced
    machine.run(945.0)
    assert len(machine.forced) == 1


def test_work_is_forced_up_gently_first_and_in_time() -> None:
    """Work that takes 60 % of the share for the whole window is spread over the window."""
    machine = Machine()
    num = int(0.6 * _SURE * 400.0 / _WORK)
    machine.join(*(sequence("a", 400.0) for _ in range(num)))
    machine.run(400.0)
    times = machine.forced_of("a")
    assert len(times) == num
    early, late = (sum(a < at_s <= a + 100.0 for at_s in times) for a in (50.0, 280.0))
    assert 0 < early < 0.7 * late


def test_no_more_than_the_share_is_forced_up() -> None:
    """Ten times as much work as the share can do is forced up at the share."""
    machine = Machine()
    machine.join(*(sequence("a", 200.0) for _ in range(int(10 * _SURE * 200.0 / _WORK))))
    machine.run(200.0)
    assert 0.8 * _SURE * 200.0 < _WORK * len(machine.forced) < _SURE * 200.0 + _WORK


def test_what_is_harvested_is_not_forced_up() -> None:
    """Work that is done in time by what others leave stays in the batch band."""
    machine = Machine()
    # By itself it would need two thirds of the share.
    work = machine.join(*(sequence("a", 400.0) for _ in range(260)))
    rate = 1.2 * _WORK * 260 / 340.0
    for number, one in enumerate(work):
        machine.run(_WORK * number / rate, harvests=(one, rate))
        machine.windows.leave(one)
    assert not machine.forced


def test_a_tenant_is_not_forced_up_by_the_flood_of_another() -> None:
    """What a has is forced up at the same times beside 1 request of b and beside 5,000."""
    times = []
    for num_others in (1, 5000):
        machine = Machine()
        machine.join(*(sequence("a", 400.0) for _ in range(60)))
        machine.join(*(sequence("b", 400.0, num_output=300) for _ in range(num_others)))
        machine.run(350.0)
        times.append(machine.forced_of("a"))
    assert len(times[0]) > 20
    assert times[1] == pytest.approx(times[0], abs=2.0)


def test_tenants_share_what_is_forced_by_weight() -> None:
    """Of two that both ask for more than there is, one of three times the weight has thrice."""
    machine = Machine()
    machine.join(*(sequence("a", 200.0) for _ in range(400)))
    machine.join(*(sequence("b", 200.0, weight=3.0) for _ in range(4000)))
    machine.run(190.0)
    a, b = len(machine.forced_of("a")), len(machine.forced_of("b"))
    assert b == pytest.approx(3 * a, abs=5)
    assert a > 20
    assert _WORK * (a + b) < _SURE * 190.0 + 2 * _WORK


def test_tenants_of_one_organisation_share_what_is_its() -> None:
    """Two that belong together are forced up as much, between them, as one that stands alone."""
    machine = Machine()
    for tenant, organisation in (("a", ""), ("b", "both"), ("c", "both")):
        machine.join(*(sequence(tenant, 200.0, organisation=organisation) for _ in range(400)))
    machine.run(190.0)
    a, b, c = (len(machine.forced_of(tenant)) for tenant in "abc")
    assert a == pytest.approx(2 * b, abs=5)
    assert b == pytest.approx(c, abs=3)
    assert _WORK * (a + b + c) == pytest.approx(_SURE * 190.0, rel=0.1)


def test_the_window_that_ends_first_goes_first() -> None:
    """Requests are forced up in the order in which their windows end."""
    machine = Machine()
    ends = [400.0, 100.0, 300.0, 200.0] * 40
    machine.join(*(sequence("a", end_s) for end_s in ends))
    machine.run(400.0)
    forced = [one.request.finish_by_s for _, one in machine.forced]
    assert forced == sorted(forced, key=lambda end_s: end_s or 0.0)
    assert {100.0, 200.0, 300.0, 400.0} == set(forced)


def test_what_cannot_be_done_in_time_is_left() -> None:
    """An answer that takes longer than the time left does not take the share of one that fits."""
    machine = Machine()
    machine.join(sequence("a", 10.0, num_output=5000), sequence("a", 10.0))
    machine.run(9.0)
    assert [one.expected_output for _, one in machine.forced] == [215.0]


@pytest.mark.parametrize("share", [0.0, _SHARE])
def test_a_share_of_nothing_forces_nothing_up(share: float) -> None:
    """With a share of 0 the band stays empty, and work without a window is never in it."""
    machine = Machine(share)
    machine.join(sequence("a", 30.0), sequence("a", None), sequence("a", 5.0, band=Band.FLEX))
    machine.run(30.0)
    assert len(machine.forced) == (share > 0.0)


def test_a_plan_looks_at_a_few_tenants_however_many_there_are() -> None:
    """Of 300 tenants no plan looks at more than 128, and all are forced up for all that."""
    machine = Machine()
    machine.tree = tree = CountedTree(FairnessConfig())
    tree.enrol(machine.flood, 0.0)
    machine.windows.go_by(_SHARE, tree, Tokens(Prices()), machine.now)
    machine.join(*(sequence(f"t{number}", 400.0) for number in range(300)))
    most = 0
    while machine.now < 400.0:
        before = tree.num_found
        machine.run(machine.now + _TICK_S)
        if machine.windows._to_weigh:
            assert len(machine.windows._to_review) == 300, "all are weighed first"
        most = max(most, tree.num_found - before)
    assert 0 < most <= 128
    assert len({one.request.tenant_id for _, one in machine.forced}) == 300


def test_a_change_of_the_configuration_keeps_who_waits() -> None:
    """Work is still forced up after the share was changed, and none that had ended before."""
    machine = Machine()
    kept, ended = machine.join(sequence("a", 60.0), sequence("a", 60.0))
    machine.run(10.0)
    machine.windows.leave(ended)
    machine.windows.go_by(2 * _SHARE, machine.tree, Tokens(Prices()), machine.now)
    machine.run(60.0)
    assert [one for _, one in machine.forced] == [kept]


def test_a_change_of_the_configuration_gives_no_credit_for_the_time_before() -> None:
    """Overdue work of hours ago is not forced up all at once because something was configured."""
    forced = []
    for is_configured in (False, True):
        machine = Machine()
        machine.join(*(sequence("a", 500.0) for _ in range(2_000)))
        machine.run(490.0)
        if is_configured:
            machine.windows.go_by(_SHARE, machine.tree, Tokens(Prices()), machine.now)
        before = len(machine.forced)
        machine.run(492.0)
        forced.append(len(machine.forced) - before)
    assert abs(forced[1] - forced[0]) <= 1


def test_a_change_of_the_configuration_counts_no_work_twice() -> None:
    """What waits is forced up at the times at which it would have been."""
    times = []
    for is_configured in (False, True):
        machine = Machine()
        machine.join(*(sequence("a", 400.0) for _ in range(60)))
        if is_configured:
            machine.windows.go_by(_SHARE, machine.tree, Tokens(Prices()), machine.now)
        machine.run(300.0)
        times.append(machine.forced_of("a"))
    assert times[0] == times[1]
    assert times[0]


def test_nothing_is_forced_up_before_the_machine_is_known_in_the_new_unit() -> None:
    """What was done before a change says nothing of what is charged after it."""
    machine = Machine()
    machine.join(*(sequence("a", 60.0) for _ in range(200)))
    machine.run(30.0)
    assert machine.forced
    machine.windows.go_by(_SHARE, machine.tree, Tokens(Prices(output=20.0)), machine.now)
    for later_s in (2.0, 4.0):
        assert not machine.windows.take(machine.now + later_s)


def test_time_left_is_to_the_last_moment_that_the_work_can_begin() -> None:
    """A twentieth of the window is to spare, the band waits for a turn, and the answer is drawn."""
    cohort = _Cohort(100.0)
    cohort.add(sequence("a", 100.0, num_output=200), 80.0, _WORK)
    assert cohort.left_s(10.0, 0.01, 2.0) == pytest.approx(100.0 - 10.0 - 4.0 - 2.0 - 3.0)


def test_what_ends_earlier_is_to_be_done_as_well() -> None:
    """Work of two windows is needed by the second end, and by the first its own."""
    tenant = _Tenant(0.0)
    for end_s, work in ((100.0, 300.0), (200.0, 700.0)):
        cohort = tenant.cohorts[end_s] = _Cohort(end_s)
        cohort.add(sequence("a", end_s, num_output=0), 0.0, work)
    assert tenant.need(0.0, 0.01, 0.0) == pytest.approx((5.0, 100.0))


def test_what_is_harvested_is_never_less_than_nothing() -> None:
    """Nor more than what is needed when nothing is known; what was given back is no harvest."""
    machine = Machine()
    [one] = machine.join(sequence("a", 400.0))
    tenant = _Tenant(0.0)
    tenant.node, tenant.harvested = machine.tree.key_of(one).above, -1.0
    assert tenant.harvests(math.inf, 0.0, 0.0) == 0.0
    tenant.harvested = -1.0
    assert tenant.harvests(7.0, 100.0, 0.0) == 7.0
    machine.tree.charge(one, 300.0, 1.0)
    for now in range(1, 200):
        rate = tenant.harvests(7.0, 100.0, float(now))
    assert 0.0 < rate < 0.1
    machine.tree.charge(one, -200.0, 200.0)
    assert 0.0 <= tenant.harvests(7.0, 100.0, 200.0) < 0.1


def test_a_machine_has_done_no_less_than_nothing() -> None:
    """Where more was given back than was done meanwhile, what was done before still counts."""
    machine = Machine()
    machine.join(sequence("a", 400.0))
    machine.run(10.0)
    before = machine.windows._recent[0]
    machine.tree.charge(machine.flood, -1e6, machine.now)
    machine.run(11.0)
    assert machine.windows._recent[0] > 0.9 * before


def test_what_was_computed_is_no_work() -> None:
    """Of a prompt of three tokens two are computed, and of an answer of 215 fifteen are drawn."""
    machine = Machine()
    one = sequence("a", 400.0)
    assert machine.windows._work_of(one) == _WORK
    one.num_computed = 2
    assert machine.windows._work_of(one) == _WORK - 2.0


def test_nothing_is_kept_of_who_has_left() -> None:
    """With its last request a tenant's windows are forgotten, and what it was short of."""
    machine = Machine()
    for one in machine.join(sequence("a", 60.0), sequence("a", 400.0), sequence("b", 60.0)):
        machine.windows.leave(one)
    assert not machine.windows._tenants
