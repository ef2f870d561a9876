"""The tree on its own: bands, borrowing, live weights, debts, switching, cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count, islice

import numpy as np
import pytest

import fakes
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from scheduler.config import FairnessConfig
from scheduler.order import places
from scheduler.order.fair_tree import FairTree
from scheduler.order.replicas import Account, Replicas
from scheduler.policies.base import Child, Key, Siblings
from scheduler.policies.vtc import Vtc
from scheduler.request import Band, Request
from scheduler.sequence import Sequence

_INFO = fakes.make_engine().info
_POOL = BlockPool(32, 4)
_ordinals = count()


def _sequence(
    tenant: str = "a",
    *,
    key: str = "k",
    weight: float = 1.0,
    band: Band = Band.DEFAULT,
    arrival_s: float = 0.0,
    deadline_s: float = 1e9,
    start_by_s: float = math.inf,
    num_uncached: int = 3,
) -> Sequence:
    plain = fakes.make_request(tenant_id=tenant, band=band, arrival_s=arrival_s)
    request = Request(
        request_id=plain.request_id,
        tenant_id=tenant,
        key_id=key,
        prompt_token_ids=plain.prompt_token_ids,
        params=plain.params,
        cache_salt=plain.cache_salt,
        arrival_s=arrival_s,
        weight=weight,
        band=band,
    )
    table = BlockTable(_POOL, b"")
    sequence = Sequence(request, table, ordinal=next(_ordinals), max_len=64, info=_INFO)
    sequence.deadline_s, sequence.start_by_s = deadline_s, start_by_s
    sequence.num_uncached = num_uncached
    return sequence


def _push(tree: FairTree, sequence: Sequence, now: float = 0.0) -> Sequence:
    tree.enrol(sequence, now)
    tree.push(sequence, now)
    return sequence


def _serve(tree: FairTree, cost: float, now: float = 0.0) -> Sequence:
    """Do as the composer does with the next request, and end it."""
    sequence = tree.peek(now)
    assert sequence is not None
    tree.remove(sequence, now)
    tree.charge(sequence, cost, now)
    tree.expel(sequence)
    return sequence


def _pass(tree: FairTree, sequence: Sequence, cost: float) -> None:
    """Serve a request out of turn."""
    _push(tree, sequence)
    tree.charge(sequence, cost, 0.0)
    tree.remove(sequence, 0.0)
    tree.expel(sequence)


def _served(tree: FairTree, num_requests: int, cost: float = 10.0) -> list[str]:
    return [_serve(tree, cost).request.tenant_id for _ in range(num_requests)]


def test_weight_edited_live_counts_from_now_on() -> None:
    """After a weight is changed, shares follow the new one; the past is not charged again."""
    tree = FairTree(FairnessConfig())
    for _ in range(40):
        _push(tree, _sequence("a"))
        _push(tree, _sequence("b"))
    assert sorted(_served(tree, 10)) == ["a"] * 5 + ["b"] * 5
    tree.set_weight("b", 3.0)
    assert _served(tree, 20).count("b") == 15


def test_a_debt_of_a_light_time_is_paid_once() -> None:
    """What was charged while a tenant weighed less is as much service later, not as much lead."""
    tree = FairTree(FairnessConfig())
    for _ in range(60):
        _push(tree, _sequence("a"))
        _push(tree, _sequence("b"))
    a = tree.find_account(Band.DEFAULT, "", "a")
    assert a is not None
    tree.lean(a, 0.05, 0.0)
    _pass(tree, _sequence("a", weight=0.05), 100.0)
    tree.lean(a, 20.0, 0.0)
    assert _served(tree, 30).count("a") == 10
    tree.lean(a, 0.5, 0.0)
    assert _served(tree, 30).count("a") == 10


def _leaned(
    charged: Mapping[str, float], waiting: str, elsewhere: Mapping[str, float]
) -> Iterator[dict[str, float]]:
    """Charge tenants so much a second, those of `waiting` wait for more; yields their weights."""
    tree, replicas = FairTree(FairnessConfig()), Replicas()
    running = {tenant: _push(tree, _sequence(tenant)) for tenant in charged}
    for tenant, sequence in running.items():
        if tenant in waiting:
            _push(tree, _sequence(tenant))
        tree.remove(sequence, 0.0)
    theirs = {Account(Band.DEFAULT, "", tenant): rate for tenant, rate in elsewhere.items()}
    for now in map(float, count()):
        for tenant, cost in charged.items():
            if cost:
                tree.charge(running[tenant], cost, now)
        replicas.rates(tree, now, now)
        for lean in replicas.lean(tree, theirs, 2, now):
            tree.lean(lean.node, lean.ratio, now)
        nodes = {tenant: tree.find_account(Band.DEFAULT, "", tenant) for tenant in charged}
        yield {tenant: node.weight for tenant, node in nodes.items() if node is not None}


def test_who_waits_and_is_served_nothing_is_leaned_on_still() -> None:
    """A tenant that has its share elsewhere does not get it back here by being served nothing."""
    seen = [weights["a"] for weights in islice(_leaned({"a": 0, "b": 9}, "ab", {"a": 1.0}), 40)]
    assert seen[-1] < 0.2
    assert seen == sorted(seen, reverse=True)


def test_what_others_leave_is_divided_between_those_who_want_it() -> None:
    """Who wants no more than it has is no part of the level; the others are brought to one."""
    charged = {"a": 30.0, "b": 60.0, "c": 10.0}
    *_, weights = islice(_leaned(charged, "ab", {"a": 0.3}), 60)
    assert weights["a"] / weights["b"] == pytest.approx(0.5, rel=0.05)
    assert weights["c"] == 1.0


def test_debt_outlives_a_short_absence() -> None:
    """A tenant that empties its queue and comes back at once goes behind those it overtook."""
    tree = FairTree(FairnessConfig())
    _push(tree, _sequence("a"))
    others = [_push(tree, _sequence("b")) for _ in range(5)]
    assert _serve(tree, 25.0).request.tenant_id == "a"
    _push(tree, _sequence("a"))
    assert _served(tree, 4) == ["b", "b", "b", "a"]
    assert others[-1] in tree


def test_asking_where_a_request_would_stand_changes_nothing() -> None:
    """Who is asked about before it waits is told the counter of its turn, and does not keep it."""
    tree = FairTree(FairnessConfig())
    _push(tree, _sequence("a"))
    _push(tree, _sequence("a"))
    _serve(tree, 100.0)
    newcomer = _sequence("b")
    assert tree.share_counter_of_next(newcomer, 0.0) == 100.0
    assert newcomer.counter == 0.0


def test_what_is_computed_again_counts_against_its_band_alone() -> None:
    """A band below earns its share of it, and no tenant is charged."""
    tree = FairTree(FairnessConfig(band_shares={Band.FLEX: 0.1}))
    lower = _push(tree, _sequence("low", band=Band.FLEX))
    _push(tree, _sequence("a"))
    again = _sequence("b")
    tree.enrol(again, 0.0)
    tree.charge_band(again, 50_000.0, 0.0)
    assert tree.peek(0.0) is lower
    assert tree.served == 0.0


def test_newcomer_to_an_empty_queue_starts_where_the_last_one_left() -> None:
    """Nobody waits: who comes first has no credit over who was served last."""
    tree = FairTree(FairnessConfig())
    _push(tree, _sequence("old"))
    _serve(tree, 1000.0)
    for _ in range(4):
        _push(tree, _sequence("new"))
        _push(tree, _sequence("old"))
    assert sorted(_served(tree, 4)) == ["new", "new", "old", "old"]


def test_sweep_keeps_debtors_and_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle tenants without debts are forgotten; those in debt keep it, and so do their keys."""
    monkeypatch.setattr(places, "_MIN_SWEEP", 8)
    tree = FairTree(FairnessConfig())
    waits = _push(tree, _sequence("waits"))
    greedy = _push(tree, _sequence("debtor", key="greedy"))
    tree.remove(greedy, 0.0)
    _pass(tree, _sequence("debtor", key="modest"), 10.0)
    tree.charge(greedy, 1000.0, 0.0)
    tree.expel(greedy)
    for index in range(50):
        _pass(tree, _sequence(f"passing{index}"), 1.0)
        tree.charge(waits, 1.0, 0.0)
    children = tree.bands["DEFAULT"].children
    assert children["debtor"].counter == 1010.0
    assert children["debtor"].children["greedy"].counter == 1000.0
    assert len(children) < 40


def test_newcomer_starts_where_the_last_one_left_though_that_was_swept() -> None:
    """Of more tenants than are kept, each begins level with the one before it."""
    tree = FairTree(FairnessConfig())
    for index in range(1_500):
        passing = _sequence(f"passing{index}")
        _pass(tree, passing, 10.0)
        assert tree.bands["DEFAULT"].children[f"passing{index}"].counter == 10.0 * (index + 1)
    assert len(tree.bands["DEFAULT"].children) < 1_024


def test_what_was_swept_keeps_its_own_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who still knows a node that has gone does not read those of another in it."""
    monkeypatch.setattr(places, "_MIN_SWEEP", 8)
    tree = FairTree(FairnessConfig())
    waits = _push(tree, _sequence("waits"))
    tree.charge(waits, 1_000.0, 0.0)
    _pass(tree, _sequence("gone", weight=4.0), 8.0)
    gone = tree.bands["DEFAULT"].children["gone"]
    figures = gone.counter, gone.weight, gone.served
    assert figures == (1_002.0, 4.0, 8.0)
    tree.charge(waits, 1_000.0, 0.0)
    for index in range(40):
        _pass(tree, _sequence(f"passing{index}"), 1.0)
    assert "gone" not in tree.bands["DEFAULT"].children
    assert (gone.counter, gone.weight, gone.served) == figures


def test_no_request_pays_for_sweeping_thousands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request that comes has a few nodes looked at, however many there are."""
    looks = [0]
    is_owed = Vtc.is_owed

    def count_look(self: Vtc, child: Child, siblings: Siblings, now: float) -> bool:
        looks[0] += 1
        return is_owed(self, child, siblings, now)

    monkeypatch.setattr(Vtc, "is_owed", count_look)
    tree = FairTree(FairnessConfig())
    keys = [_push(tree, _sequence("a", key=f"k{index}")) for index in range(1_000)]
    for key in keys:
        tree.remove(key, 0.0)
        tree.expel(key)
    most = 0
    for index in range(1_500):
        looks[0] = 0
        _pass(tree, _sequence(f"passing{index}"), 1.0)
        most = max(most, looks[0])
    assert 0 < most <= 8
    assert "a" not in tree.bands["DEFAULT"].children


def test_level_that_reads_heads_sees_a_head_that_changed_below() -> None:
    """Deadlines between tenants follow the fair order of their keys, charges and all."""
    tree = FairTree(FairnessConfig(policy="edf/vtc/fcfs"))
    first = _push(tree, _sequence("a", key="x", deadline_s=9.0))
    urgent = _push(tree, _sequence("a", key="y", deadline_s=1.0))
    between = _push(tree, _sequence("b", deadline_s=5.0))
    assert tree.peek(0.0) is between
    tree.charge(first, 10.0, 0.0)
    assert tree.peek(0.0) is urgent
    tree.charge_each({urgent: 20.0}, 0.0)
    assert tree.peek(0.0) is between


def test_equal_levels_are_one_queue() -> None:
    """`sjf` alone compares all requests of a band, not only the first of each tenant."""
    tree = FairTree(FairnessConfig(policy="sjf"))
    for index in range(20):
        sequence = _sequence(f"t{index % 3}", key=f"k{index % 2}")
        sequence.service_s = 1.5 ** ((index * 7) % 20)
        _push(tree, sequence)
    served = [_serve(tree, 1.0).service_s for _ in range(20)]
    assert served == sorted(served)
    assert len(tree.bands["DEFAULT"].order) == 0


@pytest.mark.parametrize(
    ("policy", "has_shares"),
    [
        ("vtc", True),
        ("vtc/fcfs/fcfs", True),
        ("dlpm", True),
        ("fcfs", False),
        ("fcfs/vtc/edf", False),
    ],
)
def test_tenants_have_shares_where_they_are_ordered_by_what_they_had(
    policy: str, has_shares: bool
) -> None:
    """It is the order of tenants that says so, whatever that of their keys is."""
    assert FairTree(FairnessConfig(policy=policy)).has_shares is has_shares


@pytest.mark.parametrize("policy", ["vtc", "fcfs", "dlpm", "edf/vtc/fcfs", "priority"])
def test_accounts_are_kept_at_every_level(policy: str) -> None:
    """Each node counts what waits, lives and was served below it, whatever shares an order."""
    tree = FairTree(FairnessConfig(policy=policy))
    waiting = [_push(tree, _sequence(t, key=k)) for t in "ab" for k in "xy" for _ in range(2)]
    tree.charge(waiting[0], 5.0, 0.0)
    tree.charge_each(dict.fromkeys(waiting, 1.0), 0.0)
    band = tree.bands["DEFAULT"]
    assert (band.served, band.num_waiting, band.waiting_tokens) == (13.0, 8, 24)
    assert [t.served for t in band.children.values()] == [9.0, 4.0]
    assert [k.served for k in band.children["a"].children.values()] == [7.0, 2.0]
    assert band.children["a"].num_waiting == band.children["a"].num_live == 4
    for sequence in waiting:
        tree.remove(sequence, 0.0)
        tree.expel(sequence)
    assert (band.num_waiting, band.waiting_tokens, band.num_live) == (0, 0, 0)
    assert tree.peek(0.0) is None


def test_only_who_can_still_be_in_time_borrows() -> None:
    """A tenant ahead of its turn goes first to save a deadline, and not when it is too late."""
    tree = FairTree(FairnessConfig(borrow_tokens=50.0))
    patient = _push(tree, _sequence("patient"))
    hurried = _push(tree, _sequence("hurried", start_by_s=5.0, deadline_s=8.0))
    tree.charge(hurried, 40.0, 0.0)
    assert tree.peek(4.0) is hurried
    assert tree.peek(6.0) is patient
    tree.charge(hurried, 20.0, 4.0)
    assert tree.peek(4.0) is patient, "the loan is used up"


def test_who_was_promised_nothing_borrows_nothing() -> None:
    """Without a deadline to save it is the counters alone that say who is next."""
    tree = FairTree(FairnessConfig(borrow_tokens=50.0))
    late = _push(tree, _sequence("late", deadline_s=99.0))
    early = _push(tree, _sequence("early", deadline_s=1.0))
    tree.charge(early, 10.0, 0.0)
    assert tree.peek(0.0) is late


def test_deadlines_decide_among_those_whom_the_loan_lets() -> None:
    """Of three that may borrow the tightest goes; one whose turn it is goes as any other."""
    tree = FairTree(FairnessConfig(policy="vtc/vtc/edf", borrow_tokens=50.0))
    first = _push(tree, _sequence("first", start_by_s=6.0, deadline_s=8.0))
    later = _push(tree, _sequence("later", start_by_s=7.0, deadline_s=9.0))
    tight = _push(tree, _sequence("tight", start_by_s=5.0, deadline_s=7.0))
    tree.charge(later, 10.0, 0.0)
    tree.charge(tight, 20.0, 0.0)
    assert tree.peek(0.0) is tight
    tree.charge(tight, 40.0, 0.0)
    assert tree.peek(0.0) is first


def test_late_crowd_does_not_hide_a_borrower() -> None:
    """Deadlines that are lost already do not stand before one that can be kept."""
    tree = FairTree(FairnessConfig(borrow_tokens=50.0))
    for index in range(40):
        _push(tree, _sequence(f"lost{index}", start_by_s=1.0, deadline_s=2.0))
    hurried = _push(tree, _sequence("hurried", start_by_s=5.0, deadline_s=8.0))
    tree.charge(hurried, 10.0, 0.0)
    assert tree.peek(4.0) is hurried


def test_others_are_heads_of_the_tenants_behind() -> None:
    """Whom to try when the next one does not fit: one of each other tenant, in their order."""
    tree = FairTree(FairnessConfig())
    heads = {name: _push(tree, _sequence(name)) for name in "abcd"}
    for name, cost in zip("abcd", (0.0, 30.0, 20.0, 10.0), strict=True):
        _push(tree, _sequence(name))
        tree.charge(heads[name], cost, 0.0)
    assert tree.peek(0.0) is heads["a"]
    assert list(tree.others(2, 0.0)) == [heads["d"], heads["c"]]
    assert list(tree.others(9, 0.0)) == [heads["d"], heads["c"], heads["b"]]


def test_newcomer_is_lifted_to_what_others_have_had() -> None:
    """A prompt that is charged whole and half computed lifts nobody to the end of it."""
    tree = FairTree(FairnessConfig())
    _push(tree, _sequence("old"))
    _serve(tree, 50.0)
    large = _push(tree, _sequence("large", weight=2.0, num_uncached=400))
    tree.under_way = {large}
    large.num_charged, large.num_computed = 400, 300
    tree.remove(large, 0.0)
    tree.charge(large, 400.0, 0.0)
    tenants = tree.bands["DEFAULT"].children
    assert tenants["large"].counter == 50.0 + 200.0
    new = _push(tree, _sequence("new"))
    assert tenants["new"].counter == 50.0 + 150.0
    tree.charge(new, 30.0, 0.0)
    # It has been sent back, and computes again what it has had.
    large.num_ran = 400
    _push(tree, _sequence("newer"))
    assert tenants["newer"].counter == 230.0, "the least of those that wait"
    tree.expel(large)


def test_switch_carries_counters_without_lifting() -> None:
    """A new configuration of the same policy leaves debts and credits as they were."""
    before = FairTree(FairnessConfig())
    ahead, behind = _push(before, _sequence("ahead")), _push(before, _sequence("behind"))
    before.charge(ahead, 100.0, 0.0)
    after = FairTree(FairnessConfig(borrow_tokens=1.0))
    after.carry_over(before)
    for sequence in (ahead, behind):
        _push(after, sequence)
    assert after.bands["DEFAULT"].children["behind"].counter == 0.0
    assert after.peek(0.0) is behind
    other = FairTree(FairnessConfig(policy="dlpm"))
    other.carry_over(after)
    assert other.bands["DEFAULT"].children["ahead"].counter == 0.0
    assert other.bands["DEFAULT"].children["ahead"].served == 100.0


def test_switch_while_nobody_waits_is_no_credit_for_newcomers() -> None:
    """After a switch, who comes first is lifted to who left last before it."""
    before = FairTree(FairnessConfig())
    _push(before, _sequence("old"))
    _serve(before, 1000.0)
    after = FairTree(FairnessConfig(borrow_tokens=1.0))
    after.carry_over(before)
    _push(after, _sequence("new"))
    assert after.bands["DEFAULT"].children["new"].counter == 1000.0


def test_no_operation_looks_at_many_tenants() -> None:
    """With 10,000 requests of 1,000 tenants, each operation computes a few keys at most."""
    tree = FairTree(FairnessConfig())
    for index in range(10_000):
        _push(tree, _sequence(f"t{index % 1000}", weight=1.0 + index % 7))
    with _counting_keys() as looks:
        for index in range(500):
            served = _serve(tree, 5.0)
            _push(tree, _sequence(served.request.tenant_id))
            if index % 100 == 0:
                tree.charge_each(dict.fromkeys(list(tree)[:256], 1.0), 0.0)
    assert looks[0] <= 500 * 20


@contextmanager
def _counting_keys() -> Iterator[list[int]]:
    looks = [0]
    key = Vtc.key

    def count_key(self: Vtc, child: Child, now: float) -> Key:
        looks[0] += 1
        return key(self, child, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Vtc, "key", count_key)
        yield looks


def test_a_lead_is_counted_in_what_a_weight_buys() -> None:
    """A tenant of weight four is ahead of its turn by four times what its counter says."""
    tree = FairTree(FairnessConfig(borrow_tokens=50.0))
    first = _push(tree, _sequence("first"))
    heavy = _push(tree, _sequence("heavy", weight=4.0, start_by_s=5.0, deadline_s=8.0))
    tree.charge(heavy, 48.0, 0.0)
    assert tree.lead(heavy, first) == 48.0
    assert tree.peek(4.0) is heavy, "a loan of 50 is enough for 48"
    tree.charge(heavy, 8.0, 4.0)
    assert tree.peek(4.0) is first, "not for 56, though the counter says 14"


def test_a_weight_changes_in_every_band() -> None:
    """A tenant that has requests in two bands has its new weight in both."""
    tree = FairTree(FairnessConfig())
    for band in (Band.DEFAULT, Band.FLEX):
        _push(tree, _sequence("a", band=band))
    tree.set_weight("a", 3.0)
    assert [tree.bands[name].children["a"].weight for name in ("DEFAULT", "FLEX")] == [3.0, 3.0]


def test_charges_that_nobody_asks_about_are_few_and_none_is_lost() -> None:
    """However many steps charge tenants before somebody asks who was, all of these are named."""
    tree = FairTree(FairnessConfig())
    first, last = _push(tree, _sequence("first")), _push(tree, _sequence("last"))
    for sequence in (first, *[last] * 500):
        tree.charge_accounts(np.array([sequence.account]), np.ones(1), 0.0)
    assert len(tree._charged) < 100
    assert {node.name for node in tree.take_charged()} == {"first", "last"}
    assert not tree.take_charged()


@pytest.mark.parametrize("waits", [True, False])
def test_a_switch_is_no_credit_for_the_time_spent_idle_after_it(waits: bool) -> None:
    """Whoever waits when the configuration changes is lifted like others once it comes back."""
    before = FairTree(FairnessConfig())
    old, other = _push(before, _sequence("old")), _push(before, _sequence("other"))
    if not waits:
        before.remove(old, 0.0)
    after = FairTree(FairnessConfig(borrow_tokens=1.0))
    after.enrol(old, 0.0)
    after.carry_over(before)
    if waits:
        after.push(old, 0.0)
    _push(after, other)
    if waits:
        after.remove(old, 0.0)
    after.charge(other, 1000.0, 0.0)
    _push(after, _sequence("old"))
    assert after.bands["DEFAULT"].children["old"].counter == 1000.0


def test_what_is_given_back_counts_at_once() -> None:
    """A tenant that gets a refund goes before who has had more than it then."""
    tree = FairTree(FairnessConfig())
    a, b = _push(tree, _sequence("a")), _push(tree, _sequence("b"))
    tree.charge(a, 100.0, 0.0)
    tree.charge(b, 50.0, 0.0)
    assert tree.peek(0.0) is b
    tree.charge(a, -80.0, 1.0)
    assert tree.peek(1.0) is a


def test_a_newcomer_has_the_whole_round_that_others_are_in() -> None:
    """Where rounds are fair, who begins to wait is lifted to the beginning of one."""
    tree = FairTree(FairnessConfig(policy="dlpm"))
    tree.charge(_push(tree, _sequence("old")), 5_000.0, 0.0)
    _push(tree, _sequence("new"))
    assert tree.bands["DEFAULT"].children["new"].counter == 4_096.0
