"""What is served before a newcomer, beside what the tree then does."""

from __future__ import annotations

import gc
import random

import pytest

from scheduler.admission.queue_ahead import QueueAhead
from scheduler.config import FairnessConfig
from scheduler.order import places
from scheduler.order.fair_tree import FairTree
from scheduler.order.tree_node import Node
from scheduler.request import Band
from scheduler.sequence import Sequence
from waiting import make_sequence, push


def served_before(tree: FairTree, newcomer: Sequence, now: float) -> int:
    """Let the tree serve until the newcomer's turn; returns the tokens that went before it."""
    push(tree, newcomer, now)
    num_tokens = 0
    while (head := tree.peek(now)) is not newcomer:
        assert head is not None
        tree.remove(head, now)
        tree.charge(head, float(head.num_uncached), now)
        num_tokens += head.num_uncached
    return num_tokens


def ahead_of(queue: QueueAhead, sequence: Sequence, now: float) -> float:
    ahead = queue.before(sequence, now, 0.0, draws_per_s=0.0)
    assert ahead.own == sequence.num_uncached
    return ahead.higher + ahead.others


@pytest.mark.parametrize("policy", ["fcfs", "edf"])
def test_an_order_counts_what_stands_before(policy: str) -> None:
    """Where the order is the requests' own, exactly what the tree serves first is counted."""
    for seed in range(20):
        draw = random.Random(seed)
        tree = FairTree(FairnessConfig(policy=policy))
        queue = QueueAhead(tree)
        for step in range(60):
            push(
                tree,
                make_sequence(
                    draw.randrange(1, 900),
                    tenant=draw.choice("abcd"),
                    arrival_s=float(step),
                    ttft_s=draw.choice([1.0, 5.0, 40.0]),
                ),
                float(step),
            )
        newcomer = make_sequence(100, tenant="c", arrival_s=60.0, ttft_s=draw.choice([1.0, 20.0]))
        predicted = ahead_of(queue, newcomer, 60.0)
        assert predicted == served_before(tree, newcomer, 60.0)


def test_an_order_over_all_bands_counts_them_together() -> None:
    """Where one policy orders the bands too, what stands before is counted in all of them."""
    for seed in range(10):
        draw = random.Random(seed)
        tree = FairTree(FairnessConfig(policy="priority"))
        queue = QueueAhead(tree)
        for step in range(60):
            band = draw.choice(list(Band))
            arrival_s = step / 10
            waiting = make_sequence(draw.randrange(1, 900), band=band, arrival_s=arrival_s)
            push(tree, waiting, arrival_s)
        newcomer = make_sequence(100, band=draw.choice(list(Band)), arrival_s=6.0)
        predicted = ahead_of(queue, newcomer, 6.0)
        assert predicted == served_before(tree, newcomer, 6.0)


@pytest.mark.parametrize("num_keys", [1, 3])
def test_fair_tenants_fill_up_like_water(num_keys: int) -> None:
    """With counters, weights and queues of any size, at most a request a tenant is miscounted."""
    for seed in range(40):
        draw = random.Random(seed)
        tree = FairTree(FairnessConfig(policy="vtc"))
        queue = QueueAhead(tree)
        weights = {name: draw.choice([1.0, 1.0, 2.0, 4.0]) for name in "abcdef"}
        largest = 200

        def make(
            tenant: str,
            arrival_s: float,
            draw: random.Random = draw,
            weights: dict[str, float] = weights,
            largest: int = largest,
        ) -> Sequence:
            return make_sequence(
                draw.randrange(1, largest),
                tenant=tenant,
                key=f"{tenant}{draw.randrange(num_keys)}",
                arrival_s=arrival_s,
                weight=weights[tenant],
            )

        for step in range(120):
            push(tree, make(draw.choice("abcde"), float(step)), float(step))
        for _ in range(50):
            head = tree.peek(120.0)
            assert head is not None
            tree.remove(head, 120.0)
            tree.charge(head, draw.uniform(1.0, 4.0) * head.num_uncached, 120.0)
        newcomer = make(draw.choice("abcdef"), 121.0)
        # Inflow is counted over the horizon alone, and here that is nothing.
        predicted = ahead_of(queue, newcomer, 121.0)
        slack = largest * (len(weights) + num_keys)
        assert predicted == pytest.approx(served_before(tree, newcomer, 121.0), abs=slack)


def test_an_offer_looks_at_few_of_a_tenants_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of keys some stand for all, and what they say is near what the tree does."""
    tree = FairTree(FairnessConfig(policy="vtc"))
    queue = QueueAhead(tree)
    draw = random.Random(1)
    for n in range(5_000):
        push(tree, make_sequence(draw.randrange(50, 150), tenant="a", key=f"k{n}"))
    newcomer = make_sequence(100, tenant="a", key="new")
    looks = [0]
    read = Node.waiting_tokens

    def count_look(node: Node) -> int:
        looks[0] += 1
        return int(read.__get__(node, Node))

    with monkeypatch.context() as patch:
        patch.setattr(Node, "waiting_tokens", property(count_look))
        predicted = ahead_of(queue, newcomer, 0.0)
    assert looks[0] < 200
    assert predicted == pytest.approx(served_before(tree, newcomer, 0.0), rel=0.15)


def test_a_flood_is_behind_a_tenant_that_sends_little() -> None:
    """What one tenant queues delays its own next request, and hardly that of another."""
    tree = FairTree(FairnessConfig(policy="vtc"))
    queue = QueueAhead(tree)
    for _ in range(100):
        push(tree, make_sequence(100, tenant="flood"))
    assert ahead_of(queue, make_sequence(100, tenant="flood"), 0.0) == 10_000
    assert ahead_of(queue, make_sequence(100, tenant="quiet"), 0.0) <= 100


def test_higher_bands_go_first_and_lower_ones_take_their_shares() -> None:
    """A request waits for all of the bands above, and below it only for what is guaranteed."""
    shares = {Band.FLEX: 0.2, Band.DEFAULT: 0.1}
    tree = FairTree(FairnessConfig(policy="fcfs", band_shares=shares))
    queue = QueueAhead(tree)
    for band, num_tokens in ((Band.PRIORITY, 700), (Band.DEFAULT, 50), (Band.FLEX, 9000)):
        push(tree, make_sequence(num_tokens, band=band))
    ahead = queue.before(make_sequence(10), 0.0, 0.0, draws_per_s=0.0)
    assert ahead == (700, 50, 10, 0.1, 0.2)


def test_what_came_lately_is_expected_to_go_on_coming() -> None:
    """The longer a request waits, the more of a busy tenant with a low counter goes first."""
    tree = FairTree(FairnessConfig(policy="vtc"))
    queue = QueueAhead(tree)
    for step in range(100):
        now = step / 10
        if step % 2:
            quiet = make_sequence(50, tenant="steady", arrival_s=now)
            push(tree, quiet, now)
            tree.remove(quiet, now)
            tree.charge(quiet, 50.0, now)
        else:
            push(tree, make_sequence(400, tenant="flood", arrival_s=now), now)
    flood = make_sequence(400, tenant="flood", arrival_s=10.0)
    soon, later = (
        queue.before(flood, 10.0, horizon_s, draws_per_s=0.0).others for horizon_s in (0.0, 4.0)
    )
    # It sends 250 tokens a second, averaged over ten seconds that have just begun.
    assert 4.0 * 100.0 < later - soon < 4.0 * 260.0


def test_at_its_share_a_tenant_has_queued_no_more_than_others() -> None:
    """Whose fault a wait is shows when its tenant is thought level and within its share."""
    for policy in ("vtc", "fcfs"):
        tree = FairTree(FairnessConfig(policy=policy))
        queue = QueueAhead(tree)
        for index in range(90):
            push(tree, make_sequence(100, tenant="flood" if index % 9 else "b"))
        flood = make_sequence(100, tenant="flood")
        fair = queue.before(flood, 0.0, 0.0, draws_per_s=0.0, at_share=True).others
        assert fair <= 0.65 * ahead_of(queue, flood, 0.0)
        alone = FairTree(FairnessConfig(policy=policy))
        queue = QueueAhead(alone)
        for _ in range(90):
            push(alone, make_sequence(100, tenant="flood"))
        flood = make_sequence(100, tenant="flood")
        fair = queue.before(flood, 0.0, 0.0, draws_per_s=0.0, at_share=True).others
        assert fair == ahead_of(queue, flood, 0.0) == 9000


def test_it_takes_over_a_queue_that_is_there() -> None:
    """A queue that was filled before it was followed is counted like any other."""
    tree = FairTree(FairnessConfig(policy="vtc"))
    for tenant in "abc":
        for _ in range(10):
            push(tree, make_sequence(100, tenant=tenant))
    queue = QueueAhead(tree)
    assert ahead_of(queue, make_sequence(100, tenant="a"), 0.0) == pytest.approx(3000, abs=300)
    for sequence in list(tree):
        tree.remove(sequence, 0.0)
        tree.expel(sequence)
    assert ahead_of(queue, make_sequence(100, tenant="a"), 0.0) == 0
    assert queue.oldest_joined_s is None
    departed, num_returned = queue.take_changes()
    assert (len(departed), num_returned) == (30, 0)


def test_many_tenants_come_and_go() -> None:
    """Rows of tenants that have left are used again, and sums stay those of who waits."""
    tree = FairTree(FairnessConfig(policy="vtc"))
    queue = QueueAhead(tree)
    for wave in range(5):
        now = 1000.0 * wave
        waiting = [
            make_sequence(10, tenant=f"{wave}-{index}", arrival_s=now) for index in range(300)
        ]
        for sequence in waiting:
            push(tree, sequence, now)
        newcomer = make_sequence(10, tenant="new", arrival_s=now)
        assert ahead_of(queue, newcomer, now) == pytest.approx(3000)
        for sequence in waiting:
            tree.remove(sequence, now)
            tree.charge(sequence, 10.0, now)
            tree.expel(sequence)
        assert ahead_of(queue, newcomer, now) == 0


@pytest.mark.parametrize("tenant", ["victim", "sybil0"])
def test_organisations_fill_up_like_water_and_their_tenants_within(tenant: str) -> None:
    """With any counters and queues, what goes first is what the tree then serves first."""
    for seed in range(20):
        draw = random.Random(seed)
        tree = FairTree(FairnessConfig(policy="vtc"))
        queue = QueueAhead(tree)
        largest = 200

        def make(name: str, draw: random.Random = draw, largest: int = largest) -> Sequence:
            is_alone = name in ("victim", "alone")
            return make_sequence(
                draw.randrange(1, largest),
                tenant=name,
                organisation="" if is_alone else "crowd",
                organisation_weight=2.0,
                weight=3.0 if name == "sybil0" else 1.0,
            )

        names = ["victim", "alone", *(f"sybil{n}" for n in range(6))]
        for _ in range(200):
            push(tree, make(draw.choice(names)), 0.0)
        for _ in range(50):
            head = tree.peek(0.0)
            assert head is not None
            tree.remove(head, 0.0)
            tree.charge(head, draw.uniform(1.0, 4.0) * head.num_uncached, 0.0)
        newcomer = make(tenant)
        predicted = ahead_of(queue, newcomer, 0.0)
        slack = largest * len(names)
        assert predicted == pytest.approx(served_before(tree, newcomer, 0.0), abs=slack)


def test_a_crowd_of_one_owner_is_behind_a_tenant_that_sends_little() -> None:
    """What two hundred tenants of one owner queue delays another by the turn of one."""
    tree = FairTree(FairnessConfig(policy="vtc"))
    queue = QueueAhead(tree)
    for index in range(400):
        push(tree, make_sequence(100, tenant=f"sybil{index % 200}", organisation="crowd"))
    victim = make_sequence(100, tenant="victim")
    assert ahead_of(queue, victim, 0.0) <= 100
    assert queue.shares(victim.request) == (0.5, 0.5)
    sybil = make_sequence(100, tenant="sybil0", organisation="crowd")
    assert queue.shares(sybil.request) == pytest.approx((1.0, 1 / 200))
    push(tree, victim)
    assert queue.shares(sybil.request) == pytest.approx((0.5, 0.5 / 200))
    # All tenants but its own are level with it, and each has two requests: one goes first.
    newcomer = make_sequence(100, tenant="new", organisation="crowd")
    assert ahead_of(queue, newcomer, 0.0) == pytest.approx(20_100, abs=200)
    fair = queue.before(newcomer, 0.0, 0.0, draws_per_s=0.0, at_share=True).others
    assert fair <= 0.6 * 40_000 + 100


def test_a_weight_of_an_organisation_is_learned() -> None:
    """After an organisation's weight has changed, what goes first follows it."""
    tree = FairTree(FairnessConfig(policy="vtc"))
    queue = QueueAhead(tree)
    for index in range(100):
        push(tree, make_sequence(100, tenant=f"t{index % 5}", organisation="crowd"))
    flood = [make_sequence(100, tenant="flood") for _ in range(10)]
    for sequence in flood:
        push(tree, sequence)
    last = make_sequence(100, tenant="flood")
    assert ahead_of(queue, last, 0.0) == pytest.approx(2_100, abs=100)
    tree.set_organisation_weight("crowd", 4.0)
    assert ahead_of(queue, last, 0.0) == pytest.approx(1_000 + 4 * 1_100, abs=100)


def test_many_organisations_come_and_go() -> None:
    """Of organisations that have left nothing is kept, and sums stay those of who waits."""
    tree = FairTree(FairnessConfig(policy="vtc"))
    queue = QueueAhead(tree)
    for wave in range(4):
        waiting = [
            make_sequence(10, tenant=f"t{index}", organisation=f"{wave}-{index}")
            for index in range(200)
        ]
        for sequence in waiting:
            push(tree, sequence)
        newcomer = make_sequence(10, tenant="new", organisation="new")
        assert ahead_of(queue, newcomer, 0.0) == pytest.approx(2000)
        for sequence in waiting:
            tree.remove(sequence, 0.0)
            tree.charge(sequence, 10.0, 0.0)
            tree.expel(sequence)
        assert ahead_of(queue, newcomer, 0.0) == 0
    assert len(queue._sharers._levels) < 500


def num_nodes() -> int:
    gc.collect()
    # Not `isinstance`, of which some objects warn.
    return sum(issubclass(type(each), Node) for each in gc.get_objects())


@pytest.mark.parametrize("organisation", ["", "crowd", "one each"])
def test_who_comes_and_goes_unasked_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, organisation: str
) -> None:
    """Where nobody asks what goes first, of tenants that were swept no place is kept."""
    monkeypatch.setattr(places, "_MIN_SWEEP", 16)
    tree = FairTree(FairnessConfig(policy="vtc"))
    queue = QueueAhead(tree)
    num_before = num_nodes()
    for number in range(600):
        name = f"o{number % 200}" if organisation == "one each" else organisation
        served = make_sequence(500, tenant=f"t{number % 200}", organisation=name)
        come_and_go(tree, served, 0.01 * number)
    assert num_nodes() - num_before < 100
    assert queue.shares(make_sequence(1).request) == (1.0, 1.0)


def come_and_go(tree: FairTree, sequence: Sequence, now: float) -> None:
    """Have a request served at once."""
    push(tree, sequence, now)
    tree.remove(sequence, now)
    tree.charge(sequence, float(sequence.num_uncached), now)
    tree.expel(sequence)


def test_who_asks_seldom_is_told_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes first is the same to the last digit, be it asked after each request or at the end,
    with tenants swept in between.
    """
    monkeypatch.setattr(places, "_MIN_SWEEP", 16)
    told = []
    for is_asked in (True, False):
        draw = random.Random(4)
        tree = FairTree(FairnessConfig(policy="vtc"))
        queue = QueueAhead(tree)
        newcomer = make_sequence(5_000, tenant="new")
        for number in range(400):
            now = 0.01 * number
            tenant = f"t{draw.randrange(150)}"
            organisation = draw.choice(["", "", "crowd", "other"])
            sequence = make_sequence(draw.randrange(500), tenant=tenant, organisation=organisation)
            if draw.random() < 0.1:
                push(tree, sequence, now)
            else:
                come_and_go(tree, sequence, now)
            if is_asked:
                queue.before(newcomer, now, 1.0, draws_per_s=1.0)
        asked = [newcomer, make_sequence(9_000, tenant="t1", organisation="crowd")]
        told.append([queue.before(each, 5.0, 20.0, draws_per_s=1.0) for each in asked])
        told[-1] += [queue.shares(each.request) for each in asked]
    assert told[0] == told[1]


def test_what_an_organisation_was_charged_is_learned() -> None:
    """Its counter rises with those of its tenants, in the arrays as in the tree."""
    tree = FairTree(FairnessConfig(policy="vtc"))
    queue = QueueAhead(tree)
    crowd = [make_sequence(100, tenant=f"t{n % 5}", organisation="crowd") for n in range(50)]
    for sequence in crowd:
        push(tree, sequence)
    victim = make_sequence(100, tenant="victim")
    push(tree, victim)
    newcomer = make_sequence(100, tenant="victim")
    # Level with the crowd, it waits for one of its own and as much of the crowd.
    assert ahead_of(queue, newcomer, 0.0) == pytest.approx(300, abs=100)
    tree.charge_each(dict.fromkeys(crowd, 20.0), 0.0)
    assert ahead_of(queue, newcomer, 0.0) == pytest.approx(100)


@pytest.mark.parametrize("borrow_tokens", [0.0, 1_000.0])
@pytest.mark.parametrize("sibling", ["crowd", "other", ""])
def test_a_deadline_goes_ahead_on_loan_within_its_organisation_too(
    sibling: str, borrow_tokens: float
) -> None:
    """As the tree lends: to the organisation beside others, and to the tenant beside its own."""
    tree = FairTree(FairnessConfig(policy="vtc", borrow_tokens=borrow_tokens))
    queue = QueueAhead(tree)
    for index in range(20):
        tenant, organisation = ("loud", sibling) if index % 2 else ("low", "low")
        waiting = make_sequence(50, tenant=tenant, organisation=organisation, ttft_s=1_000.0)
        push(tree, waiting)
    served = make_sequence(300, tenant="new", organisation="crowd")
    push(tree, served)
    tree.remove(served, 0.0)
    tree.charge(served, 300.0, 0.0)
    newcomer = make_sequence(100, tenant="new", organisation="crowd", ttft_s=1.0)
    newcomer.start_by_s = 1.0
    predicted = ahead_of(queue, newcomer, 0.0)
    num_served = served_before(tree, newcomer, 0.0)
    assert (predicted > 0, num_served > 0) == (borrow_tokens == 0, borrow_tokens == 0)


def test_promised_requests_that_have_gone_are_ahead_of_nobody() -> None:
    """A tenant on loan waits for those that are due before it, and for none that left the queue."""
    tree = FairTree(FairnessConfig(policy="vtc", borrow_tokens=16_384.0))
    queue = QueueAhead(tree)
    push(tree, make_sequence(10_000, tenant="stays"))
    spent = make_sequence(100, tenant="late")
    push(tree, spent)
    tree.remove(spent, 0.0)
    tree.charge(spent, 5_000.0, 0.0)
    due = [make_sequence(500, tenant="due", ttft_s=1.0) for _ in range(3)]
    for sequence in due:
        sequence.start_by_s = 0.5
        push(tree, sequence)
    newcomer = make_sequence(100, tenant="late", ttft_s=2.0)
    newcomer.start_by_s = 1.5
    assert ahead_of(queue, newcomer, 0.0) == 1_500
    for sequence in due:
        tree.remove(sequence, 0.0)
    assert ahead_of(queue, newcomer, 0.0) == 0


def test_the_first_request_says_how_large_the_next_ones_are() -> None:
    """Beyond what waits, tokens are requests like the last, from the first one on."""
    tree = FairTree(FairnessConfig())
    queue = QueueAhead(tree)
    push(tree, make_sequence(1_000))
    assert queue.num_requests(1_000) == 1.0
    assert queue.num_requests(3_000) == pytest.approx(3.0)


@pytest.mark.parametrize(("num_keys", "num_large"), [(2, 0), (300, 0), (300, 100)])
def test_other_keys_go_first_with_no_more_than_they_have(num_keys: int, num_large: int) -> None:
    """A request waits for what other keys of its tenant have waiting, however large it is."""
    tree = FairTree(FairnessConfig())
    queue = QueueAhead(tree)
    for number in range(num_keys):
        push(tree, make_sequence(100 if number < num_large else 1, key=f"k{number}"))
    newcomer = make_sequence(5_000, key="own")
    num_waiting = tree.bands["DEFAULT"].waiting_tokens
    assert ahead_of(queue, newcomer, 0.0) == num_waiting == served_before(tree, newcomer, 0.0)


def test_a_small_key_goes_first_with_what_it_has_beside_a_large_one_that_is_ahead() -> None:
    """What is waiting of keys that have had more is not counted as that of those that have not."""
    tree = FairTree(FairnessConfig())
    queue = QueueAhead(tree)
    ahead = make_sequence(10_000, key="ahead")
    for sequence in (make_sequence(7, key="small"), ahead):
        push(tree, sequence)
    tree.charge(ahead, 1e6, 0.0)
    newcomer = make_sequence(5_000, key="own")
    assert ahead_of(queue, newcomer, 0.0) == 7 == served_before(tree, newcomer, 0.0)


def test_a_weight_that_changes_is_another_share_at_once() -> None:
    """What is due beside an organisation, or a tenant, goes by what that weighs now."""
    tree = FairTree(FairnessConfig())
    queue = QueueAhead(tree)
    push(tree, make_sequence(10, tenant="a", organisation="x"))
    push(tree, make_sequence(10, tenant="b"))
    newcomer = make_sequence(10, tenant="c").request

    def share() -> float:
        return queue.shares(newcomer).tenant

    assert share() == pytest.approx(1 / 3)
    tree.set_organisation_weight("x", 3.0)
    assert share() == pytest.approx(1 / 5)
    organisation = tree.find_organisation(make_sequence(1, organisation="x").request)
    assert organisation is not None
    tree.lean(organisation, 2.0, 0.0)
    assert share() == pytest.approx(1 / 8)
    tree.set_weight("b", 3.0)
    assert share() == pytest.approx(1 / 10)
