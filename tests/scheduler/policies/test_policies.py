"""Each policy by name, on requests that wait in one queue of the tree."""

from __future__ import annotations

import math
from itertools import count

import pytest

import fakes
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from scheduler.config import FairnessConfig
from scheduler.errors import UnknownPolicy
from scheduler.order.fair_tree import FairTree
from scheduler.policies.base import Policy
from scheduler.policies.registry import levels_of, make_policy, policy_names
from scheduler.policies.size_classes import size_class
from scheduler.request import Band
from scheduler.sequence import Sequence

_INFO = fakes.make_engine().info
_POOL = BlockPool(32, 4)
_ordinals = count()


def _sequence(
    tenant: str = "a",
    *,
    arrival_s: float = 0.0,
    service_s: float = 1.0,
    num_uncached: int = 8,
    deadline_s: float = 1e9,
    start_by_s: float = math.inf,
    band: Band = Band.DEFAULT,
) -> Sequence:
    request = fakes.make_request(
        tenant_id=tenant, prompt=range(1, 9), arrival_s=arrival_s, band=band
    )
    table = BlockTable(_POOL, b"")
    sequence = Sequence(request, table, ordinal=next(_ordinals), max_len=64, info=_INFO)
    sequence.service_s, sequence.num_uncached = service_s, num_uncached
    sequence.deadline_s, sequence.start_by_s = deadline_s, start_by_s
    return sequence


def _tree(policy: str, *waiting: Sequence, now: float = 0.0, **params: float) -> FairTree:
    tree = FairTree(FairnessConfig(policy=policy, params={policy.split("/")[-1]: params}))
    for sequence in waiting:
        tree.enrol(sequence, now)
        tree.push(sequence, now)
    return tree


def test_sjf_takes_the_shortest_until_a_long_one_has_waited() -> None:
    """Short work goes first; waiting discounts long work, and at last puts it in front."""
    short = _sequence(service_s=1.0, arrival_s=9.0)
    long = _sequence(service_s=4.0, arrival_s=0.0)
    tree = _tree("sjf", long, short, aging_s=10.0, max_wait_s=60.0)
    assert tree.peek(10.0) is short
    # At 41 s: 4 / (1 + 4.1) < 1 / (1 + 3.2) is false; a newcomer of the same size has no wait.
    newcomer = _sequence(service_s=1.0, arrival_s=41.0)
    tree.remove(short, 41.0)
    tree.enrol(newcomer, 41.0)
    tree.push(newcomer, 41.0)
    assert tree.peek(41.0) is long
    tiny = _sequence(service_s=0.01, arrival_s=59.0)
    tree.enrol(tiny, 59.0)
    tree.push(tiny, 59.0)
    assert tree.peek(59.0) is tiny
    assert tree.peek(61.0) is long


def test_sjf_takes_what_has_little_left() -> None:
    """A request that comes back with less work left goes before a shorter new one."""
    new, back = _sequence(service_s=2.0), _sequence(service_s=0.5)
    back.was_admitted = True
    assert _tree("sjf", new, back).peek(1.0) is back


def test_hrrn_weighs_the_wait_by_the_work() -> None:
    """The response ratio decides: ten seconds for long work are one second for short work."""
    long = _sequence(service_s=10.0, arrival_s=0.0)
    short = _sequence(service_s=1.0, arrival_s=10.0)
    tree = _tree("hrrn", long, short)
    assert tree.peek(11.0) is long
    assert tree.peek(12.0) is short


def test_mlfq_skips_levels_demotes_and_promotes() -> None:
    """A long prefill enters further down, who has run comes back further down, for a time."""
    long = _sequence(num_uncached=1000)
    ran = _sequence(num_uncached=100)
    ran.num_ran = 600
    new = _sequence(num_uncached=100)
    tree = _tree("mlfq", long, ran, new, quantum_tokens=128.0, promotion_s=3.0)
    assert tree.peek(1.0) is new
    tree.remove(new, 1.0)
    # 600 and 1000 tokens are of the same level; the one that waits longer goes first.
    assert tree.peek(1.0) is long
    late = _sequence(num_uncached=10)
    tree.enrol(late, 2.0)
    tree.push(late, 2.0)
    assert tree.peek(2.5) is late
    # What is given back is no service.
    tree.charge(long, -5.0, 3.0)
    assert tree.peek(3.5) is long


def test_priority_orders_bands_and_lifts_by_waiting() -> None:
    """The higher band goes first until the lower has waited for each band between them."""
    low = _sequence(band=Band.FLEX, arrival_s=0.0)
    high = _sequence(band=Band.PRIORITY, arrival_s=39.0)
    tree = _tree("priority", low, high, aging_s=20.0, max_boost=3.0)
    assert tree.peek(39.0) is high
    assert tree.peek(60.0) is low
    bounded = _tree("priority", low, high, aging_s=20.0, max_boost=1.0)
    assert bounded.peek(1000.0) is high


def test_hybrid_prefers_short_prefills_and_gives_up_what_is_late() -> None:
    """Of equal deadlines the shorter prompt goes first; what cannot be in time goes last."""
    long = _sequence(deadline_s=10.0, num_uncached=1000, start_by_s=2.0)
    short = _sequence(deadline_s=12.0, num_uncached=10, start_by_s=11.9)
    tree = _tree("hybrid", long, short, alpha_s=0.008)
    assert tree.peek(0.0) is short
    doomed = _sequence(deadline_s=5.0, num_uncached=10, start_by_s=4.9)
    tree.enrol(doomed, 1.0)
    tree.push(doomed, 1.0)
    assert tree.peek(1.0) is doomed
    assert tree.peek(6.0) is short
    for sequence in (short, doomed):
        tree.remove(sequence, 6.0)
    assert tree.peek(6.0) is long


def test_hybrid_never_gives_up_what_ran() -> None:
    """A preempted request keeps its place though it is late."""
    ran = _sequence(deadline_s=5.0, start_by_s=4.0)
    ran.was_admitted = True
    assert _tree("hybrid", _sequence(deadline_s=50.0), ran).peek(10.0) is ran


def test_edf_takes_the_earliest_deadline() -> None:
    """The next token that is due first decides, not the arrival."""
    early = _sequence(arrival_s=0.0, deadline_s=9.0)
    urgent = _sequence(arrival_s=3.0, deadline_s=4.0)
    assert _tree("edf", early, urgent).peek(3.0) is urgent


def test_lpm_takes_the_longest_prefix_but_not_for_ever() -> None:
    """What is cached goes first; a cold request gains on warm ones that came later."""
    cold = _sequence(num_uncached=8, arrival_s=0.0)
    warm = _sequence(num_uncached=2, arrival_s=1.0)
    warm_later = _sequence(num_uncached=2, arrival_s=7.0)
    tree = _tree("lpm", cold, warm_later, warm, aging_tokens_per_s=1.0)
    served = []
    while (sequence := tree.peek(8.0)) is not None:
        tree.remove(sequence, 8.0)
        served.append(sequence)
    assert served == [warm, cold, warm_later]


def test_dlpm_takes_turns_in_rounds() -> None:
    """The tenant with the warm head goes first until its quantum is used up, then waits."""
    cold = _sequence("cold", num_uncached=8)
    warm = [_sequence("warm", num_uncached=2) for _ in range(4)]
    tree = FairTree(FairnessConfig(policy="dlpm", params={"dlpm": {"quantum": 10.0}}))
    for sequence in (cold, *warm):
        tree.enrol(sequence, 0.0)
        tree.push(sequence, 0.0)
    served = []
    for _ in range(5):
        sequence = tree.peek(0.0)
        assert sequence is not None
        served.append(sequence.request.tenant_id)
        tree.remove(sequence, 0.0)
        tree.charge(sequence, 6.0, 0.0)
    assert served == ["warm", "warm", "cold", "warm", "warm"]


def test_dlpm_lends_in_what_a_weight_buys() -> None:
    """Beyond the end of the others' round a tenant is ahead by its weight's worth of service."""
    heads = [_sequence(name) for name in ("a", "b")]
    tree = FairTree(FairnessConfig(policy="dlpm", params={"dlpm": {"quantum": 10.0}}))
    for sequence in heads:
        tree.enrol(sequence, 0.0)
        tree.push(sequence, 0.0)
    first, heavy = (tree.key_of(sequence).above for sequence in heads)
    heavy.weight, heavy.counter = 4.0, 16.0
    assert heavy.above.policy.lead(heavy, first) == 24.0
    heavy.counter = 9.0
    assert heavy.above.policy.lead(heavy, first) == 0.0


def test_sizes_fall_into_few_classes() -> None:
    """Classes grow by a fifth each, and absurd sizes fall into the first or last of them."""
    assert size_class(0.0) == size_class(0.001) == 0
    assert size_class(1e9) == size_class(4096.0) == 87
    assert size_class(1.05) == size_class(1.2) < size_class(1.3)


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_is_made_by_name_for_every_level(name: str) -> None:
    """A name alone, and the name at each of three levels, serve all who wait."""
    assert isinstance(make_policy(name, FairnessConfig()), Policy)
    for policy in (name, f"{name}/vtc/fcfs", f"vtc/{name}/edf", f"fcfs/vtc/{name}"):
        assert len(levels_of(policy)) == 3
        waiting = [
            _sequence(tenant, arrival_s=float(index), service_s=0.5 + index)
            for index, tenant in enumerate("abcabc")
        ]
        tree = _tree(policy, *waiting)
        for now in range(10, 16):
            sequence = tree.peek(float(now))
            assert sequence is not None
            waiting.remove(sequence)
            tree.remove(sequence, float(now))
            tree.charge(sequence, 3.0, float(now))
        assert (waiting, tree.peek(20.0)) == ([], None)


@pytest.mark.parametrize("policy", ["", "lifo", "vtc/fcfs", "vtc/vtc/lifo", "a/b/c/d"])
def test_unknown_policy_is_refused(policy: str) -> None:
    """A name that is not registered, or levels that are not three, raise."""
    with pytest.raises(UnknownPolicy):
        levels_of(policy)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("sjf", {"aging_s": 0.0}),
        ("sjf", {"max_wait_s": -1.0}),
        ("mlfq", {"quantum_tokens": 0.0}),
        ("lpm", {"aging_tokens_per_s": 0.0}),
        ("dlpm", {"quantum": 0.0}),
        ("hybrid", {"alpha_s": -0.1}),
        ("priority", {"aging_s": 0.0}),
        ("priority", {"max_boost": -1.0}),
    ],
)
def test_useless_parameters_are_refused(name: str, params: dict[str, float]) -> None:
    """Numbers that would divide by zero or turn an order round raise when the policy is made."""
    with pytest.raises(ValueError, match=next(iter(params))):
        make_policy(name, FairnessConfig(params={name: params}))
