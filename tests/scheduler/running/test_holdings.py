"""What tenants are entitled to: by weight, beside who asked for something lately."""

from __future__ import annotations

import random

import pytest

import fakes
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from scheduler.request import Band
from scheduler.running.holdings import Holdings
from scheduler.sequence import Sequence


def make(tenant: str, band: Band = Band.DEFAULT, weight: float = 1.0) -> Sequence:
    request = fakes.make_request(tenant_id=tenant, band=band, weight=weight)
    info = fakes.make_engine().info
    return Sequence(request, BlockTable(BlockPool(4, 4), b""), ordinal=0, max_len=64, info=info)


def test_shares_are_by_weight_within_the_band_and_those_above() -> None:
    """A tenant shares with its band and higher ones, which share without it."""
    holdings = Holdings()
    high, one, three = make("h", Band.PRIORITY), make("a"), make("b", weight=3.0)
    for sequence in (high, one, three):
        holdings.join(sequence, 0.0)
    assert (holdings.share(high), holdings.share(one), holdings.share(three)) == (1.0, 0.2, 0.6)
    holdings.set_weight("b", 2.0)
    assert (holdings.share(one), holdings.share(three)) == (0.25, 0.5)
    holdings.lean(Band.DEFAULT, (False, "b"), 0.5)
    holdings.lean(Band.DEFAULT, (True, "b"), 9.0)
    holdings.lean(Band.FLEX, (False, "b"), 9.0)
    assert holdings.share(one) == holdings.share(three) == 1 / 3


def test_a_weight_changes_while_its_tenant_waits() -> None:
    """What those that wait weigh together is by the weights that they have now."""
    holdings = Holdings()
    one, three = make("a"), make("b", weight=3.0)
    for sequence in (one, three):
        holdings.join(sequence, 0.0)
    holdings.set_weight("a", 2.0)
    assert holdings.weights_up_to(Band.DEFAULT) == (5.0, 5.0, 0.0)
    holdings.admit(three)
    assert holdings.weights_up_to(Band.DEFAULT) == (5.0, 2.0, 3.0)


def test_who_has_no_row_has_no_place() -> None:
    """The place that it had is another's next."""
    holdings = Holdings()
    gone, comes = make("a"), make("b")
    for sequence in (gone, comes):
        holdings.join(sequence, 0.0)
    holdings.admit(gone)
    place = holdings.place(gone)
    holdings.release(gone)
    holdings.admit(comes)
    assert holdings.place(comes) == place
    assert holdings.place(gone) < 0


def test_a_weight_changes_in_every_band() -> None:
    """A tenant that is live in two bands is entitled to more in both."""
    holdings = Holdings()
    own = [make("a", band) for band in (Band.DEFAULT, Band.FLEX)]
    for sequence in (*own, make("b", Band.PRIORITY)):
        holdings.join(sequence, 0.0)
    holdings.set_weight("a", 3.0)
    assert [holdings.share(sequence) for sequence in own] == [3 / 4, 3 / 7]


def test_who_asked_lately_has_a_share_for_a_minute() -> None:
    """One whose requests have ended keeps its share for a minute, one that is live for good."""
    holdings = Holdings()
    stays, goes, still = make("a"), make("b"), make("c")
    for sequence in (stays, goes, still):
        holdings.join(sequence, 0.0)
    holdings.leave(goes, 10.0)
    holdings.forget(69.0)
    assert holdings.share(stays) == pytest.approx(1 / 3)
    holdings.forget(71.0)
    assert holdings.share(stays) == 0.5
    holdings.leave(still, 71.0)
    holdings.forget(132.0)
    assert holdings.share(stays) == 1.0


def test_a_step_forgets_no_more_than_some_of_thousands() -> None:
    """Those that came together and left are forgotten in a few steps, and none is left over."""
    holdings, live = Holdings(), make("live")
    holdings.join(live, 0.0)
    for number in range(1000):
        gone = make(f"t{number}")
        holdings.join(gone, 0.0)
        holdings.leave(gone, 0.0)
    shares = [holdings.share(live)]
    for _ in range(10):
        holdings.forget(61.0)
        shares.append(holdings.share(live))
    assert shares == sorted(shares)
    assert shares[1] < 2 * shares[0]
    assert shares[-1] == 1.0


def test_without_shares_each_may_have_all() -> None:
    """Where the first to come is served first, nobody is entitled to less than everything."""
    holdings = Holdings()
    one = make("a")
    holdings.join(one, 0.0)
    holdings.join(make("b"), 0.0)
    holdings.has_shares = False
    assert holdings.share(one) == 1.0


def test_rows_are_listed_by_tenant_while_they_run() -> None:
    """A tenant's rows are those that were admitted and not released, in its band alone."""
    holdings = Holdings()
    first, second, other = make("a"), make("a"), make("a", Band.FLEX)
    for sequence in (first, second, other):
        holdings.join(sequence, 0.0)
        holdings.admit(sequence)
    assert list(holdings.rows_beside(first)) == [first, second]
    holdings.release(first)
    assert list(holdings.some_rows()) == [second, other]


def test_who_has_its_share_of_the_slots_leaves_some() -> None:
    """Of sixteen slots one of two equals takes eight freely, and beside those leaves two."""
    holdings = Holdings()
    holdings.join(make("b"), 0.0)
    rows = [make("a") for _ in range(9)]
    for row in rows:
        holdings.join(row, 0.0)
    for row in rows[:7]:
        holdings.admit(row)
    assert holdings.slots_kept_from(rows[8], 16) == 0
    holdings.admit(rows[7])
    assert holdings.slots_kept_from(rows[8], 16) == 2


def test_no_more_is_kept_than_others_are_entitled_to() -> None:
    """Of 32 slots one that weighs fifteen sixteenths leaves two and not four."""
    holdings = Holdings()
    holdings.join(make("light"), 0.0)
    rows = [make("heavy", weight=15.0) for _ in range(31)]
    for row in rows:
        holdings.join(row, 0.0)
    for row in rows[:30]:
        holdings.admit(row)
    assert holdings.slots_kept_from(rows[30], 32) == 2


def test_what_is_kept_of_who_waits_is_what_counting_again_finds() -> None:
    """After any history, weights of who waits, and rows of who does not, are those of all alive."""
    draw = random.Random(7)
    holdings = Holdings()
    live: list[Sequence] = []
    rows: list[Sequence] = []
    for step in range(1500):
        match draw.randrange(5):
            case 0 | 1:
                tenant = draw.randrange(9)
                band = draw.choice((Band.PRIORITY, Band.DEFAULT, Band.FLEX))
                live.append(make(f"t{tenant}", band, 2.0**tenant))
                holdings.join(live[-1], step)
            case 2 if len(live) > len(rows):
                rows.append(draw.choice([s for s in live if s not in rows]))
                holdings.admit(rows[-1])
            case 3 if rows:
                holdings.release(rows.pop(draw.randrange(len(rows))))
            case _ if live:
                gone = live.pop(draw.randrange(len(live)))
                if gone in rows:
                    rows.remove(gone)
                    holdings.release(gone)
                holdings.leave(gone, step)
        holdings.forget(step)
        for band in (Band.PRIORITY, Band.DEFAULT, Band.FLEX):
            waiting = {s.holder for s in live if s not in rows}
            weight_of = {s.holder: s.request.weight for s in live}
            above = [holder for holder in waiting if holder[0] <= band]
            weights = holdings.weights_up_to(band)
            assert weights.waiting == sum(weight_of[holder] for holder in above)
            own = sum(weight_of[holder] for holder in above if holder[0] == band)
            higher = holdings.weights_up_to(Band(band - 1)).all if band else 0.0
            assert weights.own_idle == weights.all - higher - own
            content = {s.holder for s in rows if s.holder[0] <= band} - waiting
            places = {holdings.place(s) for s in rows if s.holder in content}
            assert sorted(holdings.places_of_content(band)) == sorted(places)
        places = [holdings.place(row) for row in holdings.some_rows()]
        assert len(set(places)) == len(places)
        assert all(0 <= place < 40 for place in places)
