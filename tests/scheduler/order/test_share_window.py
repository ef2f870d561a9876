"""How evenly tenants were served: what they had against what they were entitled to."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

import fakes
from decode_contest import Contest, Flood
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from scheduler.config import FairnessConfig
from scheduler.order import BandShares, FairTree, ShareWindow
from scheduler.order.share_window import MAX_TENANTS, WINDOW_S, divide, jain
from scheduler.request import Band, Request
from scheduler.sequence import Sequence

_INFO = fakes.make_engine().info
_POOL = BlockPool(32, 4)
_ordinals = count()


class Tenants:
    """Serve tenants of a tree by hand, window by window."""

    def __init__(self) -> None:
        self.tree = FairTree(FairnessConfig())
        self.window = ShareWindow(self.tree)

    def join(
        self,
        tenant: str,
        now: float = 0.0,
        *,
        weight: float = 1.0,
        organisation: str = "",
        band: Band = Band.DEFAULT,
        waits: bool = True,
    ) -> Sequence:
        number = next(_ordinals)
        plain = fakes.make_request(str(number))
        request = Request(
            request_id=plain.request_id,
            tenant_id=tenant,
            key_id="k",
            prompt_token_ids=plain.prompt_token_ids,
            params=plain.params,
            cache_salt=b"",
            arrival_s=now,
            weight=weight,
            organisation_id=organisation,
            band=band,
        )
        table = BlockTable(_POOL, b"")
        sequence = Sequence(request, table, ordinal=number, max_len=64, info=_INFO)
        self.tree.enrol(sequence, now)
        if waits:
            self.tree.push(sequence, now)
        return sequence

    def roll(self, now: float) -> dict[Band, BandShares]:
        assert now >= self.window.ends_s
        self.window.roll(now)
        return {shares.band: shares for shares in self.window.last}


def test_who_is_behind_its_part_is_seen() -> None:
    """Of two of one weight, one with thrice as much: entitled to halves, and the index says so."""
    tenants = Tenants()
    a, b = tenants.join("a"), tenants.join("b")
    tenants.roll(0.0)
    tenants.tree.charge(a, 30.0, 1.0)
    tenants.tree.charge(b, 10.0, 1.0)
    shares = tenants.roll(WINDOW_S)[Band.DEFAULT]
    assert [(t.tenant_id, t.received, t.entitled) for t in shares.tenants] == [
        ("a", 0.75, 0.5),
        ("b", 0.25, 0.5),
    ]
    assert shares.jain == pytest.approx(0.8)
    assert (shares.began_s, shares.ended_s, shares.num_tenants) == (0.0, WINDOW_S, 2)


def test_shares_go_by_weight_and_organisation() -> None:
    """A tenant weighs its organisation's weight times its own part of that."""
    tenants = Tenants()
    a = tenants.join("a", weight=2.0)
    b = tenants.join("b", weight=3.0, organisation="org")
    c = tenants.join("c", weight=1.0, organisation="org")
    tenants.roll(0.0)
    for sequence, cost in ((a, 8.0), (b, 3.0), (c, 1.0)):
        tenants.tree.charge(sequence, cost, 1.0)
    shares = tenants.roll(WINDOW_S)[Band.DEFAULT]
    entitled = {(t.organisation_id, t.tenant_id): t.entitled for t in shares.tenants}
    assert entitled == pytest.approx({("", "a"): 2 / 3, ("org", "b"): 1 / 4, ("org", "c"): 1 / 12})
    assert shares.jain == pytest.approx(1.0)


def test_who_wanted_no_more_takes_nothing_from_the_index() -> None:
    """One that had a little, and nothing waiting, is content; the others share what it left."""
    tenants = Tenants()
    idle = tenants.join("idle", waits=False)
    a, b = tenants.join("a"), tenants.join("b")
    tenants.roll(0.0)
    for sequence, cost in ((idle, 2.0), (a, 4.0), (b, 4.0)):
        tenants.tree.charge(sequence, cost, 1.0)
    shares = tenants.roll(WINDOW_S)[Band.DEFAULT]
    assert {t.tenant_id: t.entitled for t in shares.tenants} == {"idle": 0.2, "a": 0.4, "b": 0.4}
    assert {t.tenant_id: t.wanted_more for t in shares.tenants}["idle"] is False
    assert shares.jain == 1.0


def test_only_who_was_there_throughout_counts() -> None:
    """One that came later, or had nothing for a moment, is not held against the others."""
    tenants = Tenants()
    a, gone = tenants.join("a"), tenants.join("gone")
    tenants.roll(0.0)
    late = tenants.join("late", 5.0)
    tenants.tree.remove(gone, 6.0)
    tenants.tree.expel(gone)
    again = tenants.join("gone", 7.0)
    for sequence in (a, late, again):
        tenants.tree.charge(sequence, 10.0, 8.0)
    shares = tenants.roll(WINDOW_S)[Band.DEFAULT]
    assert [t.tenant_id for t in shares.tenants] == ["a"]
    assert tenants.roll(2 * WINDOW_S) == {}, "nobody was served anything"
    tenants.tree.charge(late, 10.0, 130.0)
    assert tenants.roll(3 * WINDOW_S)[Band.DEFAULT].num_tenants == 3


def test_a_queue_that_was_empty_for_a_moment_wanted_no_more() -> None:
    """Who had something waiting throughout wanted more; who had not, at one moment, did not."""
    tenants = Tenants()
    a, b = tenants.join("a"), tenants.join("b")
    tenants.roll(0.0)
    tenants.tree.remove(a, 5.0)
    tenants.tree.push(a, 5.0)
    tenants.tree.charge(a, 1.0, 6.0)
    tenants.tree.charge(b, 3.0, 6.0)
    shares = tenants.roll(WINDOW_S)[Band.DEFAULT]
    assert {t.tenant_id: t.wanted_more for t in shares.tenants} == {"a": False, "b": True}


def test_who_has_nothing_waiting_any_more_wanted_no_more() -> None:
    """A queue that ended is none that lasted, and one that is added to is."""
    tenants = Tenants()
    ended, added, gone = tenants.join("ended"), tenants.join("added"), tenants.join("gone")
    tenants.roll(0.0)
    tenants.tree.remove(ended, 5.0)
    tenants.join("added", 5.0)
    for sequence in (ended, added, gone):
        tenants.tree.charge(sequence, 1.0, 6.0)
    tenants.tree.remove(gone, 7.0)
    tenants.tree.expel(gone)
    shares = tenants.roll(WINDOW_S)[Band.DEFAULT]
    assert {t.tenant_id: t.wanted_more for t in shares.tenants} == {"ended": False, "added": True}


def test_whose_rows_are_held_back_wanted_more() -> None:
    """A tenant without a queue wanted more in a window in which rows of it were held for others."""
    tenants = Tenants()
    held, other = tenants.join("held", waits=False), tenants.join("other", waits=False)
    tenants.roll(0.0)
    for end_s, is_held in ((WINDOW_S, True), (2 * WINDOW_S, False)):
        if is_held:
            tenants.tree.note_held(np.array([held.account[2]]))
        tenants.tree.charge(held, 1.0, end_s - 1.0)
        tenants.tree.charge(other, 3.0, end_s - 1.0)
        [*told] = tenants.roll(end_s)[Band.DEFAULT].tenants
        assert {t.tenant_id: t.wanted_more for t in told} == {"held": is_held, "other": False}


def test_what_is_told_of_ten_thousand_tenants_is_bounded() -> None:
    """However many there are, those that had the most are told of, and all are counted."""
    tenants = Tenants()
    sequences = [tenants.join(f"t{n}") for n in range(2_000)]
    tenants.roll(0.0)
    for n, sequence in enumerate(sequences):
        tenants.tree.charge(sequence, float(n), 1.0)
    shares = tenants.roll(WINDOW_S)[Band.DEFAULT]
    assert shares.num_tenants == 2_000
    assert len(shares.tenants) == MAX_TENANTS
    assert shares.tenants[0].tenant_id == "t1999"


def test_bands_are_looked_at_apart() -> None:
    """What a tenant had in one band is not held against one of another."""
    tenants = Tenants()
    a, b = tenants.join("a"), tenants.join("b", band=Band.FLEX)
    tenants.roll(0.0)
    tenants.tree.charge(a, 9.0, 1.0)
    tenants.tree.charge(b, 1.0, 1.0)
    shares = tenants.roll(WINDOW_S)
    assert {band: s.tenants[0].entitled for band, s in shares.items()} == {
        Band.DEFAULT: 1.0,
        Band.FLEX: 1.0,
    }


def test_rows_that_sat_out_wanted_more() -> None:
    """Where all fit, and rows of the larger sit out, both have what they are entitled to."""
    contest = Contest(Flood(tenant="a", streams=16), Flood(tenant="b", streams=48))
    contest.run(100)
    assert contest.scheduler.shares(contest.now) == ()
    contest.now = WINDOW_S + 1.0
    contest.run(300)
    lifecycle = contest.scheduler._lifecycle
    lifecycle.shares.roll(contest.now)
    [shares] = contest.scheduler.shares(contest.now)
    found = {t.tenant_id: t for t in shares.tenants}
    assert found["b"].wanted_more
    assert found["b"].received == pytest.approx(found["b"].entitled, abs=0.05)
    assert shares.jain == 1.0


def test_the_fairest_division() -> None:
    """Who has less than its part and wants no more leaves the rest to the others, by weight."""
    had = np.array([0.1, 0.2, 0.7])
    entitled, is_content = divide(had, np.array([1.0, 1.0, 2.0]), np.array([False, True, True]))
    assert entitled == pytest.approx([0.1, 0.3, 0.6])
    assert is_content.tolist() == [True, False, False]


@pytest.mark.parametrize("num_tenants", [2, 5])
def test_the_index_is_least_where_one_has_all(num_tenants: int) -> None:
    """It is 1/n where one of n has everything, and 1 where all have what they are entitled to."""
    entitled = np.full(num_tenants, 1.0 / num_tenants)
    had = np.zeros(num_tenants)
    had[0] = 1.0
    assert jain(had, entitled) == pytest.approx(1 / num_tenants)
    assert jain(entitled, entitled) == pytest.approx(1.0)
