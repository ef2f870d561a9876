"""The order of children against a sorted list, with keys that change behind its back."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace
from typing import ClassVar, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from scheduler.order.siblings import Order
from scheduler.policies.base import Child, Key, Policy
from scheduler.sequence import Sequence


class _Item:
    """A child whose class changes at a time, and whose key may rise at any time."""

    def __init__(self, ordinal: int, key: int, moves_at_s: float) -> None:
        self.counter = 0.0
        self.weight = 1.0
        self.rises = 0
        self.base = key
        self.moves_at_s = moves_at_s
        self.sequence = SimpleNamespace(was_admitted=False, ordinal=ordinal)

    def head(self, now: float) -> Sequence:
        return cast(Sequence, self.sequence)


class _ByKey(Policy):
    """Order items by their keys, those that have moved after all others."""

    num_looks: ClassVar[int] = 0

    def key(self, child: Child, now: float) -> Key:
        assert isinstance(child, _Item)
        _ByKey.num_looks += 1
        return (float(child.base + child.rises),)

    def class_of(self, child: Child, now: float) -> int:
        assert isinstance(child, _Item)
        return int(now >= child.moves_at_s)

    def rank(self, child: Child, now: float) -> Key:
        return (float(self.class_of(child, now)), *self.key(child, now))


class OrderMachine(RuleBasedStateMachine):
    """Add, discard and move items at random; the first few are always those of a sorted list."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = _ByKey()
        self.order = Order(self.policy)
        self.items: list[_Item] = []
        self.num_made = 0
        self.now = 0.0

    @rule(key=st.integers(0, 5), moves_in_s=st.sampled_from([0, 1, 3, 1000]))
    def add(self, key: int, moves_in_s: int) -> None:
        self.num_made += 1
        item = _Item(self.num_made, key, self.now + moves_in_s)
        self.items.append(item)
        self.order.add(item, self.now)

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.items))
        self.items.remove(item)
        self.order.discard(item)
        assert item not in self.order

    @precondition(lambda self: self.items)
    @rule(data=st.data(), rise=st.integers(1, 4))
    def rise_silently(self, data: st.DataObject, rise: int) -> None:
        data.draw(st.sampled_from(self.items)).rises += rise

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def fall(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.items))
        item.base, item.rises = 0, 0
        self.order.update(item, self.now)

    @rule(seconds=st.integers(1, 2))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(num_items=st.integers(0, 4))
    def compare(self, num_items: int) -> None:
        expected = sorted(
            self.items, key=lambda i: (self.policy.rank(i, self.now), i.sequence.ordinal)
        )
        assert self.order.first(self.now) is (expected[0] if expected else None)
        in_turn = self.order.in_turn(self.now)
        assert list(islice(in_turn, num_items)) == expected[:num_items]
        in_turn.close()
        assert set(self.order) == set(self.items) == set(self.order.waiting())
        assert len(self.order) == len(self.items)


OrderMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
TestOrder = OrderMachine.TestCase


def test_last_child_that_changes_class_is_still_found() -> None:
    """A child that surfaces in another class, alone or not, is first where it belongs."""
    order = Order(_ByKey())
    late, other = _Item(1, 0, moves_at_s=5.0), _Item(2, 9, moves_at_s=9.0)
    order.add(late, 0.0)
    assert order.first(6.0) is late
    order.add(other, 6.0)
    assert order.first(6.0) is other


def test_ties_go_to_who_ran_before_then_to_the_older() -> None:
    """Among equals, one that was preempted goes first, then the one that came first."""
    order = Order(_ByKey())
    older, younger, preempted = (_Item(ordinal, 1, 1e9) for ordinal in (1, 2, 3))
    preempted.sequence.was_admitted = True
    for item in (younger, preempted, older):
        order.add(item, 0.0)
    assert list(order.in_turn(0.0)) == [preempted, older, younger]


def test_changes_cost_a_few_looks_and_bounded_memory() -> None:
    """With 10,000 children no change looks at more than a few, and dead entries do not pile up."""
    order = Order(_ByKey())
    items = [_Item(ordinal, ordinal, 1e9) for ordinal in range(10_000)]
    for item in items:
        order.add(item, 0.0)
    _ByKey.num_looks = 0
    for turn in range(2_000):
        first = order.first(0.0)
        assert isinstance(first, _Item)
        first.rises += 10_000
        order.update(items[-turn - 1], 0.0)
        order.discard(items[-turn - 1])
        order.add(items[-turn - 1], 0.0)
    assert _ByKey.num_looks <= 6 * 2_000
    assert sum(map(len, order._heaps.values())) <= 2 * 10_000 + 64


def test_what_has_left_and_moved_is_forgotten_and_the_order_stays() -> None:
    """Children that come, go and move for long leave no more entries than twice their number."""
    order = Order(_ByKey())
    items = [_Item(ordinal, (7 * ordinal) % 50, 1e9) for ordinal in range(50)]
    for item in items:
        order.add(item, 0.0)
    for turn in range(1_000):
        item = items[(11 * turn) % 50]
        item.base = (13 * turn) % 50
        if turn % 3:
            order.update(item, 0.0)
        else:
            order.discard(item)
            order.add(item, 0.0)
        assert sum(map(len, order._heaps.values())) <= 2 * 50 + 64
        expected = min(items, key=lambda item: (item.base, item.sequence.ordinal))
        # Nobody looks for a while, so that what is dead does not surface.
        if turn % 100 == 99:
            assert order.first(0.0) is expected
    expected_all = sorted(items, key=lambda item: (item.base, item.sequence.ordinal))
    assert list(order.in_turn(0.0)) == expected_all
