"""The bands' shares: strict order, guarantees, and what cannot be gamed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.order.siblings import Order
from scheduler.policies.bands import BandShares
from scheduler.request import Band
from scheduler.sequence import Sequence

_SHARES = {
    Band.PRIORITY: 0.0,
    Band.DEFAULT: 0.1,
    Band.FLEX: 0.05,
    Band.DUE: 0.05,
    Band.BATCH: 0.0,
}
_QUANTUM = 100.0


@dataclass(eq=False)
class _Band:
    band: Band
    counter: float = 0.0
    weight: float = 1.0

    def head(self, now: float) -> Sequence:
        raise AssertionError("bands are not ordered by their heads")


class _Bands:
    """Serve bands, of which some always wait."""

    def __init__(self, *waiting: Band) -> None:
        self.policy = BandShares(_SHARES, quantum=_QUANTUM)
        self.order = Order(self.policy)
        self.bands = {band: _Band(band) for band in Band}
        self.served = dict.fromkeys(Band, 0.0)
        for band in waiting:
            self.begin(band)

    def begin(self, band: Band) -> None:
        self.policy.activate(self.bands[band], self.order, 0.0)
        self.order.add(self.bands[band], 0.0)

    def stop(self, band: Band) -> None:
        self.order.discard(self.bands[band])

    def charge(self, band: Band, cost: float) -> None:
        self.served[band] += cost
        self.policy.charge(self.bands[band], cost, self.order, 0.0)

    def next(self) -> Band:
        first = self.order.first(0.0)
        assert isinstance(first, _Band)
        return first.band

    def serve(self, total: float, cost: float) -> None:
        end = sum(self.served.values()) + total
        while sum(self.served.values()) < end:
            self.charge(self.next(), cost)


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(cost=st.floats(10.0, 300.0), waiting=st.sets(st.sampled_from(Band), min_size=1))
def test_each_band_that_waits_gets_its_share(cost: float, waiting: set[Band]) -> None:
    """Guarantees are met within a few quanta, batch gets nothing, the highest band the rest."""
    bands = _Bands(*waiting)
    bands.serve(50_000.0, cost)
    total = sum(bands.served.values())
    slack = 6 * _QUANTUM + 2 * cost
    for band in waiting - {min(waiting)}:
        assert abs(bands.served[band] - _SHARES[band] * total) <= slack
    assert sum(bands.served[band] for band in Band if band not in waiting) == 0.0


def test_past_plenty_is_no_reason_to_starve() -> None:
    """A band that had everything for long still gets its share soon after a higher one comes."""
    bands = _Bands(Band.DEFAULT)
    bands.serve(1_000_000.0, 50.0)
    bands.begin(Band.PRIORITY)
    before = bands.served[Band.DEFAULT]
    bands.serve(60.0 * _QUANTUM, 50.0)
    assert bands.served[Band.DEFAULT] - before >= 0.05 * 60.0 * _QUANTUM


def test_waiting_for_nothing_earns_nothing() -> None:
    """A band that comes back has not saved anything up while others were served."""
    bands = _Bands(Band.PRIORITY, Band.DEFAULT)
    bands.serve(500.0, 10.0)
    bands.stop(Band.DEFAULT)
    bands.serve(100_000.0, 10.0)
    bands.begin(Band.DEFAULT)
    assert bands.next() is Band.PRIORITY
    bands.serve(5.0 * _QUANTUM, 10.0)
    assert bands.served[Band.DEFAULT] == 0.0


@pytest.mark.parametrize("band", [Band.DEFAULT, Band.BATCH])
def test_cancelling_cannot_earn_a_place(band: Band) -> None:
    """A large charge that is taken back leaves a band no better off than it was."""
    bands = _Bands(Band.PRIORITY, band)
    for _ in range(10):
        bands.charge(band, 50_000.0)
        bands.charge(band, -50_000.0)
        assert bands.next() is Band.PRIORITY
    assert bands.bands[band].counter <= _QUANTUM


def test_one_large_cost_leaves_its_own_band_in_debt() -> None:
    """What a band is served earns it nothing beyond the debt: it is not owed its turn again."""
    bands = _Bands(Band.PRIORITY, Band.DEFAULT)
    bands.charge(Band.PRIORITY, 10 * _QUANTUM)
    assert bands.next() is Band.DEFAULT
    bands.charge(Band.DEFAULT, 1_000 * _QUANTUM)
    assert bands.next() is Band.PRIORITY
    bands.charge(Band.PRIORITY, 30 * _QUANTUM)
    assert bands.next() is Band.PRIORITY
    bands.charge(Band.PRIORITY, 20 * _QUANTUM)
    assert bands.next() is Band.DEFAULT


def test_a_moment_without_requests_forgives_no_debt() -> None:
    """A band that has had more than its share does not begin anew by letting its queue run out."""
    bands = _Bands(Band.PRIORITY, Band.DEFAULT)
    bands.charge(Band.DEFAULT, 1_000 * _QUANTUM)
    bands.stop(Band.DEFAULT)
    bands.begin(Band.DEFAULT)
    bands.serve(30 * _QUANTUM, 10.0)
    assert bands.served[Band.DEFAULT] == 1_000 * _QUANTUM


def test_what_was_owed_is_lost_with_the_queue() -> None:
    """A band that was about to have its turn and has nothing any more is owed nothing after."""
    bands = _Bands(Band.PRIORITY, Band.DEFAULT)
    bands.charge(Band.PRIORITY, 11 * _QUANTUM)
    assert bands.next() is Band.DEFAULT
    bands.stop(Band.DEFAULT)
    bands.begin(Band.DEFAULT)
    assert bands.next() is Band.PRIORITY


def test_a_debt_to_a_higher_band_is_not_forgiven_by_more_service() -> None:
    """What a band is served once nobody above waits makes it owe no less."""
    bands = _Bands(Band.PRIORITY, Band.DEFAULT)
    bands.charge(Band.DEFAULT, 1_000 * _QUANTUM)
    debt = bands.bands[Band.DEFAULT].counter
    bands.stop(Band.PRIORITY)
    bands.charge(Band.DEFAULT, 10.0)
    assert debt <= bands.bands[Band.DEFAULT].counter < debt + 10.0
