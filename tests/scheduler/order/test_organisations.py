"""The tree with organisations in it: shares, accounts, weights, switching, sweeping."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.config import FairnessConfig
from scheduler.order import places
from scheduler.order.fair_tree import FairTree
from scheduler.order.tree_node import Level, Node
from scheduler.request import Band
from scheduler.sequence import Sequence
from waiting import make_sequence, push


def _push(tree: FairTree, tenant: str, organisation: str = "", **of_it: object) -> Sequence:
    sequence = make_sequence(3, tenant=tenant, organisation=organisation, **of_it)  # type: ignore[arg-type]
    push(tree, sequence)
    return sequence


def _serve(tree: FairTree, cost: float = 10.0) -> Sequence:
    """Do as the composer does with the next request, and end it."""
    sequence = tree.peek(0.0)
    assert sequence is not None
    tree.remove(sequence, 0.0)
    tree.charge(sequence, cost, 0.0)
    tree.expel(sequence)
    return sequence


def _organisation(tree: FairTree, name: str) -> Node:
    (node,) = (
        node
        for node in tree.below(tree.bands["DEFAULT"])
        if node.level is Level.ORGANISATION and node.name == name
    )
    return node


def test_many_tenants_of_one_organisation_share_what_one_gets() -> None:
    """Two hundred tenants of one owner take half beside a single one, each of them as much."""
    tree = FairTree(FairnessConfig())
    for index in range(200):
        for _ in range(3):
            _push(tree, f"sybil{index}", "crowd")
    for _ in range(600):
        _push(tree, "victim")
    served = [_serve(tree).request.tenant_id for _ in range(800)]
    assert served.count("victim") == 400
    assert {served.count(f"sybil{index}") for index in range(200)} == {2}


def test_weights_count_between_organisations_and_then_within() -> None:
    """A tenant's weight is for its organisation's share, which its own weight does not change."""
    tree = FairTree(FairnessConfig())
    for _ in range(100):
        _push(tree, "a", "x", weight=9.0, organisation_weight=2.0)
        _push(tree, "b", "x", weight=3.0, organisation_weight=2.0)
        _push(tree, "c", "y", organisation_weight=1.0)
        _push(tree, "d", weight=3.0)
    served = [_serve(tree).request.tenant_id for _ in range(120)]
    assert [served.count(name) for name in "abcd"] == [30, 10, 20, 60]


def test_a_tenant_may_have_the_name_of_an_organisation() -> None:
    """Whoever has no organisation shares with nobody who happens to be called alike."""
    tree = FairTree(FairnessConfig())
    for _ in range(20):
        _push(tree, "same")
        _push(tree, "other", "same")
        _push(tree, "same", "other")
    served = [_serve(tree).request for _ in range(30)]
    assert [
        sum((r.tenant_id, r.organisation_id) == of for r in served)
        for of in (("same", ""), ("other", "same"), ("same", "other"))
    ] == [10, 10, 10]


def test_its_weight_may_be_edited_live() -> None:
    """After an organisation's weight is changed shares follow it, of all that waits already."""
    tree = FairTree(FairnessConfig())
    for band in (Band.DEFAULT, Band.FLEX):
        for _ in range(40):
            _push(tree, "a", "x", band=band)
            _push(tree, "b", band=band)
    assert [_serve(tree).request.tenant_id for _ in range(10)].count("a") == 5
    tree.set_organisation_weight("x", 3.0)
    assert [_serve(tree).request.tenant_id for _ in range(20)].count("a") == 15
    tree.set_organisation_weight("b", 100.0)
    assert [_serve(tree).request.tenant_id for _ in range(20)].count("a") == 15
    tree.set_weight("a", 5.0)
    assert _organisation(tree, "x").children["a"].weight == 5.0
    assert _organisation(tree, "x").weight == 3.0
    assert tree._organisations[Band.FLEX, "x"].weight == 3.0, "in every band"


@pytest.mark.parametrize("policy", ["vtc", "vtc/vtc/fcfs", "dlpm", "edf/vtc/fcfs", "fcfs"])
def test_every_way_to_charge_comes_to_the_same(policy: str) -> None:
    """One by one, many at once, or by accounts: each node is charged what was served below it."""
    trees = [FairTree(FairnessConfig(policy=policy)) for _ in range(3)]
    members = [("a", "x"), ("b", "x"), ("c", "y"), ("d", ""), ("a", "")]
    for index, tree in enumerate(trees):
        waiting = [_push(tree, *member, weight=2.0) for member in members for _ in range(2)]
        if index == 0:
            for sequence in waiting:
                tree.charge(sequence, 3.0, 0.0)
        elif index == 1 or not tree.sums_up:
            tree.charge_each(dict.fromkeys(waiting, 3.0), 0.0)
        else:
            accounts = np.array([sequence.account for sequence in waiting], dtype=np.intp)
            tree.charge_accounts(accounts, np.full(len(waiting), 3.0), 0.0)
    figures = [_figures(tree) for tree in trees]
    assert figures[0] == figures[1] == figures[2]
    assert figures[0]["DEFAULT", "organisation x"][0] == 12.0
    assert figures[0]["DEFAULT", "d"][0] == 6.0
    assert figures[0]["DEFAULT",][0] == 30.0
    if policy.startswith("vtc"):
        assert figures[0]["DEFAULT", "organisation x"][1] == 12.0
        assert figures[0]["DEFAULT", "organisation x", "a"][1] == 3.0


def _figures(tree: FairTree) -> dict[tuple[str, ...], tuple[float, float]]:
    found: dict[tuple[str, ...], tuple[float, float]] = {}
    left: list[tuple[tuple[str, ...], Node]] = [((name,), n) for name, n in tree.bands.items()]
    for path, node in left:
        # What a band is owed goes by thirds and tenths.
        found[path] = node.served, round(node.counter, 6)
        for child in tree.below(node):
            of = "organisation " if child.level is Level.ORGANISATION else ""
            left.append(((*path, f"{of}{child.name}"), child))
    return found


def test_prompts_under_way_go_by_organisation_then_tenant() -> None:
    """Whoever is ahead of its share is so by what its organisation had, then by its own."""
    tree = FairTree(FairnessConfig())
    greedy, modest, alone = _push(tree, "a", "x"), _push(tree, "b", "x"), _push(tree, "c")
    tree.charge(greedy, 30.0, 0.0)
    tree.charge(alone, 20.0, 0.0)
    shares = [tree.share_counters(sequence) for sequence in (alone, modest, greedy)]
    assert shares == [(20.0, 20.0), (30.0, 0.0), (30.0, 30.0)]
    unfair = FairTree(FairnessConfig(policy="edf"))
    one = _push(unfair, "a", "x")
    unfair.charge(one, 30.0, 0.0)
    assert unfair.share_counters(one) == (0.0, 0.0)


@pytest.mark.parametrize(("num_computed", "counter"), [(0, 7.0), (2_048, 7.0), (3_000, 483.0)])
def test_a_prompt_that_has_begun_goes_on_for_a_while(num_computed: int, counter: float) -> None:
    """Within an organisation a prompt stands where it began until it has had a turn.

    What it has had beyond that counts then, for the weight of its tenant.
    """
    tree = FairTree(FairnessConfig(unit="tokens"))
    begun = _push(tree, "a", "x", weight=2.0)
    tree.charge(begun, 14.0, 0.0)
    tree.note_begin(begun)
    tree.charge(begun, 5_000.0, 0.0)
    begun.num_charged, begun.num_computed = 5_000, num_computed
    assert tree.share_counters(begun) == (5_014.0, counter)
    begun.num_computed = 5_000
    assert tree.share_counters(begun) == (5_014.0, 2_507.0)


def test_a_newcomer_is_lifted_to_what_organisations_have_had() -> None:
    """A prompt charged whole counts as far as it was computed, between organisations too."""
    tree = FairTree(FairnessConfig())
    long = make_sequence(100, tenant="a", organisation="x")
    tree.under_way = [long]
    push(tree, long)
    tree.remove(long, 0.0)
    long.num_charged, long.num_ran = 100, 40
    tree.charge(long, 100.0, 0.0)
    _push(tree, "b", "x")
    _push(tree, "c", "y")
    _push(tree, "d")
    assert _organisation(tree, "x").children["b"].counter == 40.0
    assert _organisation(tree, "y").counter == 40.0
    assert tree.bands["DEFAULT"].children["d"].counter == 40.0


def test_a_switch_carries_organisations_over() -> None:
    """A tree of another order goes on with what organisations were charged, and their weights."""
    before = FairTree(FairnessConfig())
    sequences = [_push(before, "a", "x", organisation_weight=4.0), _push(before, "b")]
    before.charge(sequences[0], 100.0, 0.0)
    before.set_organisation_weight("x", 5.0)
    for policy, counter in (("vtc/vtc/fcfs", 25.0), ("dlpm/vtc/fcfs", 0.0)):
        after = FairTree(FairnessConfig(policy=policy))
        for sequence in sequences:
            after.enrol(sequence, 0.0)
        after.carry_over(before)
        for sequence in sequences:
            after.push(sequence, 0.0)
        node = _organisation(after, "x")
        assert (node.served, node.counter, node.weight) == (100.0, counter, 5.0)
        assert node.children["a"].served == 100.0
        assert len(list(after.tenants(after.bands["DEFAULT"]))) == 2


def test_idle_organisations_are_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with nothing left and no debts are forgotten after their tenants; debtors are not."""
    monkeypatch.setattr(places, "_MIN_SWEEP", 8)
    tree = FairTree(FairnessConfig())
    waits = _push(tree, "waits")
    debtor = _push(tree, "t", "debtor")
    tree.charge(debtor, 1000.0, 0.0)
    tree.remove(debtor, 0.0)
    tree.expel(debtor)
    for index in range(100):
        passing = _push(tree, "t", f"passing{index}")
        tree.remove(passing, 0.0)
        tree.charge(passing, 1.0, 0.0)
        tree.expel(passing)
        tree.charge(waits, 1.0, 0.0)
    names = [node.name for node in tree.below(tree.bands["DEFAULT"])]
    assert "debtor" in names
    assert len(names) < 40
    assert _organisation(tree, "debtor").counter == 1000.0


def test_an_organisation_stays_while_a_tenant_of_it_is_in_debt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind all others it owes nobody; what one of its tenants owes another is kept."""
    monkeypatch.setattr(places, "_MIN_SWEEP", 8)
    tree = FairTree(FairnessConfig())
    waits = _push(tree, "waits")
    debtor, modest = _push(tree, "debtor", "x"), _push(tree, "modest", "x")
    for sequence, cost in ((debtor, 1000.0), (modest, 10.0)):
        tree.charge(sequence, cost, 0.0)
        tree.remove(sequence, 0.0)
        tree.expel(sequence)
    tree.charge(waits, 9000.0, 0.0)
    for index in range(60):
        passing = _push(tree, f"passing{index}")
        tree.remove(passing, 0.0)
        tree.charge(passing, 1.0, 0.0)
        tree.expel(passing)
        tree.charge(waits, 1.0, 0.0)
    assert len(list(tree.below(tree.bands["DEFAULT"]))) < 40
    assert _organisation(tree, "x").children["debtor"].counter == 1000.0


def test_a_deadline_within_an_organisation_is_saved_at_both_levels() -> None:
    """A loan is what the organisation, and its tenant within it, may each be ahead of its turn."""
    for of_tenant, of_other, goes_ahead in ((40.0, 0.0, True), (60.0, 0.0, False), (30.0, 30.0, 0)):
        tree = FairTree(FairnessConfig(borrow_tokens=50.0))
        patient = _push(tree, "patient")
        idle, hurried = _push(tree, "idle", "x"), _push(tree, "hurried", "x")
        tree.remove(hurried, 0.0)
        hurried.start_by_s, hurried.deadline_s = 5.0, 8.0
        tree.push(hurried, 0.0)
        tree.charge(hurried, of_tenant, 0.0)
        tree.charge(idle, of_other, 0.0)
        assert tree.peek(4.0) is (hurried if goes_ahead else patient)
        assert tree.peek(6.0) is patient
        tree.charge(patient, 70.0, 9.0)
        assert tree.peek(9.0) is idle
        within = of_tenant - of_other <= 50.0
        assert tree.peek(4.0) is (hurried if within else idle)


def test_whom_to_try_next_where_one_organisation_waits_alone() -> None:
    """One of each organisation is tried; of a lone organisation, one of each of its tenants."""
    tree = FairTree(FairnessConfig())
    first, second = _push(tree, "a", "x"), _push(tree, "b", "x")
    _push(tree, "a", "x")
    assert tree.peek(0.0) is first
    assert list(tree.others(5, 0.0)) == [second]
    third = _push(tree, "c")
    assert list(tree.others(5, 0.0)) == [third]


def test_a_level_that_nobody_uses_is_not_there() -> None:
    """Tenants of no organisation stand right below their band, and stand for both in accounts."""
    tree = FairTree(FairnessConfig())
    sequence = _push(tree, "a")
    key, tenant, member, band = sequence.account
    assert member == tenant
    assert len({key, tenant, band}) == 3
    assert tree.find_tenant(sequence.request) is tree.bands["DEFAULT"].children["a"]
    assert tree.find_organisation(sequence.request) is None
    shared = _push(tree, "a", "x")
    assert len(set(shared.account)) == 4
    assert tree.find_tenant(shared.request) is _organisation(tree, "x").children["a"]
