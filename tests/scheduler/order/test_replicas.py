"""Tenants on several replicas: shares over all of them, by what each tells the others."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fakes
from decode_contest import Contest, Flood
from fakes import Driver
from scheduler.config import PRESETS, FairnessConfig
from scheduler.core import Scheduler
from scheduler.order import FairTree
from scheduler.order.replicas import LEAST, MAX_TOLD, Account, Rates, Replicas, fill
from scheduler.request import Band

# Streams that wait for one of 64 slots, and so few that all rows fit.
QUEUED, FITTING = 90, 28


class Fleet:
    """Drive contests beside each other; each tells its rates once a second, `late_s` late.

    Of each replica: how many streams of which weight a tenant has there.
    """

    def __init__(self, *replicas: Mapping[str, tuple[int, float]], late_s: int = 1) -> None:
        self.contests = [
            # A few dozen steps a second are enough.
            Contest(
                *(Flood(tenant=name, streams=n, weight=w) for name, (n, w) in floods.items()),
                host_row_s=0.0005,
            )
            for floods in replicas
        ]
        self.told: deque[Sequence[Rates]] = deque(maxlen=late_s + 1)
        self._before: Counter[str] = Counter()

    def settle(self, for_s: int) -> None:
        """Run, and count from here on."""
        self.run(for_s)
        self._before = self._tokens()

    def run(self, for_s: int) -> None:
        for _ in range(for_s):
            end_s = self.contests[0].now + 1.0
            for contest in self.contests:
                while contest.now < end_s:
                    contest.turn()
            self.told.append([c.scheduler.rates(c.now) for c in self.contests])
            for contest in self.contests:
                mine = self.contests.index(contest)
                elsewhere: Counter[Account] = Counter()
                for theirs, rates in enumerate(self.told[0]):
                    if theirs != mine:
                        elsewhere.update(rates)
                contest.scheduler.lean(elsewhere, len(self.contests), contest.now)

    def share(self, tenant: str) -> float:
        since = self._tokens() - self._before
        return since[tenant] / since.total()

    def _tokens(self) -> Counter[str]:
        return sum((contest.tokens for contest in self.contests), Counter())


@pytest.mark.parametrize(("num_replicas", "streams"), [(2, FITTING), (4, QUEUED)])
def test_two_replicas_are_no_two_shares(num_replicas: int, streams: int) -> None:
    """Who floods all replicas beside who floods all but one has half of them all."""
    both = {"a": (streams, 1.0), "b": (streams, 1.0)}
    fleet = Fleet({"a": (streams, 1.0)}, *[both] * (num_replicas - 1))
    fleet.settle(6 * num_replicas)
    weights = []
    for _ in range(10):
        fleet.run(1)
        weights.append(_weight(fleet.contests[1], "a"))
    assert fleet.share("a") == pytest.approx(0.5, abs=0.025)
    # It has come to rest, and does not swing about it.
    assert max(weights) < 1.4 * min(weights)


def test_shares_go_by_weights_over_all() -> None:
    """A weight of three has three quarters of what two replicas serve, wherever that is."""
    fleet = Fleet(
        {"a": (QUEUED, 1.0), "b": (QUEUED, 3.0)},
        {"a": (QUEUED, 1.0), "b": (QUEUED, 3.0)},
        {"b": (QUEUED, 3.0)},
    )
    fleet.settle(15)
    fleet.run(10)
    assert fleet.share("b") == pytest.approx(0.75, abs=0.0375)


def test_who_has_much_elsewhere_is_served_here_all_the_same() -> None:
    """No replica lets a tenant starve, and once nobody else is heard of all weigh what they did."""
    fleet = Fleet({"a": (QUEUED, 1.0)}, {"a": (QUEUED, 1.0), "b": (QUEUED, 1.0)})
    fleet.settle(15)
    fleet.run(5)
    there = fleet.contests[1]
    before = there.tokens.copy()
    assert fleet.share("a") > 0.5
    for _ in range(10):
        end_s = there.now + 1.0
        while there.now < end_s:
            there.turn()
        there.scheduler.rates(there.now)
        there.scheduler.lean({}, 1, there.now)
        # At once: a gateway that is alone asks no second time.
        assert _weight(there, "a") == pytest.approx(1.0, abs=0.01)
    since = there.tokens - before
    assert 0.3 < since["a"] / since.total() < 0.55
    assert _weight(there, "a") == pytest.approx(1.0, abs=0.01)


def test_a_light_tenant_loses_nothing() -> None:
    """A tenant that wants no more than it has weighs what it did, whatever it has elsewhere."""
    one = {"light": (1, 1.0), "flood": (QUEUED, 1.0), "other": (QUEUED, 1.0)}
    fleet = Fleet(one, {"light": (2, 1.0), "flood": (QUEUED, 1.0)})
    fleet.run(12)
    light = Account(Band.DEFAULT, "", "light")
    for contest in fleet.contests:
        state = contest.scheduler.state(contest.now)
        weights = {t.tenant_id: t.weight for band in state.bands for t in band.tenants}
        assert weights["light"] >= 1.0
        assert fleet.told[-1][0][light] > 0.0


def test_batch_work_that_is_forced_up_weighs_what_was_set() -> None:
    """What a tenant has of the batch band elsewhere is no reason to force less of it up here."""
    driver = Driver(fakes.make_engine(num_blocks=400))
    scheduler = driver.scheduler = Scheduler(driver.engine.info, PRESETS["mixed"])

    def offer(name: str, tenant: str, *, window_s: float | None = None) -> None:
        ends_s = None if window_s is None else driver.now + window_s
        asked = fakes.make_request(
            name, tenant_id=tenant, band=Band.BATCH, max_tokens=20, finish_by_s=ends_s, weight=2.0
        )
        driver.offer(asked)

    for number in range(40):
        for tenant in "ab":
            offer(f"{tenant}{number}", tenant)
    offer("early", "b", window_s=300.0)
    for second in range(30):
        if second == 12:
            offer("late", "a", window_s=100.0)
            scheduler.set_weight("b", 5.0)
        driver.turn()
        scheduler.rates(driver.now)
        if second < 12:
            scheduler.lean({Account(Band.BATCH, "", "a"): 1.0}, 2, driver.now)
    bands = {band.band: band.tenants for band in scheduler.state(driver.now).bands}
    weights = {band: {t.tenant_id: t.weight for t in bands[band]} for band in bands}
    assert weights[Band.BATCH]["a"] < 0.5
    assert weights[Band.DUE] == pytest.approx({"a": 2.0, "b": 5.0})


def test_no_more_are_told_than_may_be() -> None:
    """Of hundreds that are served in turn those with the most are told, not all of a while."""
    driver = Driver(fakes.make_engine(max_num_seqs=64, num_blocks=256, max_num_batched_tokens=256))
    for number in range(600):
        driver.offer(fakes.make_request(f"r{number}", tenant_id=f"t{number}", max_tokens=1))
    told: list[Rates] = []
    while driver.turn():
        told.append(driver.scheduler.rates(driver.now))
    assert sum(len(rates) > 0 for rates in told) > 6
    assert max(map(len, told)) == MAX_TOLD


def test_who_waits_and_is_served_nothing_is_told() -> None:
    """Others are to know of it: it may have had something elsewhere."""
    driver = Driver(fakes.make_engine(max_num_seqs=1))
    scheduler = driver.scheduler
    scheduler.rates(0.0)
    for tenant in "ab":
        driver.offer(fakes.make_request(tenant, tenant_id=tenant, max_tokens=8))
    for _ in range(3):
        driver.turn()
    assert scheduler.rates(driver.now)[Account(Band.DEFAULT, "", "b")] == 0.0


@pytest.mark.parametrize(("num_replicas", "num_left"), [(1, 0), (2, 36)])
def test_who_is_served_here_no_longer_begins_anew(num_replicas: int, num_left: int) -> None:
    """At once if nobody else corrects anything; else 64 at first, whom it changes most for."""
    replicas, tree = Replicas(), FairTree(FairnessConfig())
    replicas._factors = {
        Account(Band.DEFAULT, "", f"t{n}"): 0.1 if n % 2 else 0.5 for n in range(100)
    }
    assert replicas.lean(tree, {}, num_replicas, 1.0) == []
    assert list(replicas._factors.values()) == [0.5] * num_left


def test_each_of_many_replicas_takes_its_part_on() -> None:
    """All answer the same imbalance: one of eight by a fourth of what one of two does."""
    ratios = []
    for num_replicas in (2, 8):
        driver = Driver(fakes.make_engine(num_blocks=400))
        scheduler = driver.scheduler
        for number in range(40):
            for tenant in "ab":
                name = f"{tenant}{number}"
                driver.offer(fakes.make_request(name, tenant_id=tenant, max_tokens=20))
        for _ in range(5):
            driver.turn()
            scheduler.rates(driver.now)
        replicas, tree = scheduler._replicas, scheduler._lifecycle.waiting
        elsewhere = {Account(Band.DEFAULT, "", "a"): 0.3}
        leans = replicas.lean(tree, elsewhere, num_replicas, driver.now)
        ratios.append({lean.account.tenant_id: math.log(lean.ratio) for lean in leans})
    assert ratios[0]["a"] < 0.0
    assert ratios[0] == pytest.approx({tenant: 4 * by for tenant, by in ratios[1].items()})


def test_what_is_told_is_a_part_of_the_time_that_has_passed() -> None:
    """A machine that stood still for three quarters of the time has served for a quarter of it."""
    driver = Driver(fakes.make_engine())
    scheduler = driver.scheduler
    scheduler.rates(0.0)
    for tenant in "ab":
        driver.offer(fakes.make_request(tenant, tenant_id=tenant, max_tokens=8))
    driver.run()
    took_s = 4.0 * driver.now
    rates = scheduler.rates(took_s)
    assert sum(rates.values()) == pytest.approx(0.25 * (1.0 - math.exp(-took_s / 3.0)))


def test_what_is_given_back_is_not_told() -> None:
    """Who cancels a long prompt was served nothing then, and others no more than there was."""
    engine = fakes.make_engine(num_blocks=400, max_num_batched_tokens=16, max_model_len=1_000)
    driver = Driver(engine)
    scheduler = driver.scheduler = Scheduler(engine.info, PRESETS["mixed"])
    driver.offer(fakes.make_request("gone", tenant_id="a", prompt=[1] * 600))
    driver.turn()
    scheduler.rates(driver.now)
    began_s = driver.now
    scheduler.cancel("gone", driver.now)
    driver.offer(fakes.make_request("stays", tenant_id="b", prompt=[2] * 64, max_tokens=8))
    driver.run()
    rates = scheduler.rates(driver.now)
    assert min(rates.values()) >= 0.0
    assert sum(rates.values()) <= 1.0 - math.exp(-(driver.now - began_s) / 3.0) + 1e-9


def test_a_weight_that_is_set_holds_at_once() -> None:
    """What an operator sets is whole at first, whatever its tenant has elsewhere."""
    fleet = Fleet({"a": (QUEUED, 1.0)}, {"a": (QUEUED, 1.0), "b": (QUEUED, 1.0)})
    fleet.run(10)
    there = fleet.contests[1]
    assert _weight(there, "a") < 0.5
    there.scheduler.set_weight("a", 4.0)
    assert _weight(there, "a") == 4.0
    there.scheduler.lean(fleet.told[-1][0], 2, there.now)
    assert 1.0 < _weight(there, "a") < 4.0
    fleet.run(20)
    assert _weight(there, "a") >= LEAST * 0.999


def test_a_weight_that_is_set_of_an_organisation_holds_at_once() -> None:
    """What it has elsewhere leaned on the weight before, and not on this one."""
    driver = Driver(fakes.make_engine(num_blocks=400))
    scheduler = driver.scheduler = Scheduler(driver.engine.info, PRESETS["mixed"])

    def offer(name: str, organisation: str) -> None:
        asked = fakes.make_request(name, max_tokens=20, tenant_id=f"of-{organisation}")
        driver.offer(replace(asked, organisation_id=organisation))

    def entitled() -> float:
        [band] = scheduler.state(driver.now).bands
        return next(t.entitled for t in band.tenants if t.organisation_id == "a")

    for number in range(40):
        offer(f"a{number}", "a")
        offer(f"b{number}", "b")
    for _ in range(10):
        driver.turn()
        scheduler.rates(driver.now)
        scheduler.lean({Account(Band.DEFAULT, "a", ""): 1.0}, 2, driver.now)
    assert entitled() < 0.3
    scheduler.set_organisation_weight("a", 3.0)
    scheduler.lean({}, 1, driver.now)
    assert entitled() == 0.75


def _weight(contest: Contest, tenant: str) -> float:
    state = contest.scheduler.state(contest.now)
    return next(t.weight for band in state.bands for t in band.tenants if t.tenant_id == tenant)


@given(
    st.lists(
        st.tuples(st.floats(0.1, 10.0), st.floats(0.0, 5.0), st.floats(0.0, 5.0) | st.none()),
        min_size=1,
        max_size=8,
    ),
    st.floats(0.0, 20.0),
)
def test_what_is_divided_is_level(
    tenants: Sequence[tuple[float, float, float | None]], total: float
) -> None:
    """Parts fill the total; who has less than others for its weight is at its bound."""
    weights, elsewhere = (np.array([tenant[i] for tenant in tenants]) for i in (0, 1))
    most = np.array([np.inf if tenant[2] is None else tenant[2] for tenant in tenants])
    parts = fill(weights, elsewhere, most, total)
    assert (parts >= 0.0).all()
    assert (parts <= most).all()
    assert parts.sum() == pytest.approx(min(total, most.sum()), abs=1e-6)
    levels = (parts + elsewhere) / weights
    has_more = levels[parts > 1e-9].max(initial=0.0)
    assert (levels[parts < most - 1e-9] >= has_more - 1e-6).all()
