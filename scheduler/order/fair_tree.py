"""Who is next: bands, organisations, tenants, keys, requests, each level in its policy's order.

    root ─ band ─ organisation ─ tenant ─ key ─ request

The next request is found by going down from the root to the first child of each node. A tenant
that has split its work over many keys has split its own share, and an organisation that has split
it over many tenants likewise. Organisations have the policy of tenants. Which nodes there are is
said in `scheduler.order.places`, what they are charged in `scheduler.order.accounts`, and
how far that puts them ahead in `scheduler.order.standings`.

Where the configuration lends, a tenant may go ahead of its turn; see `scheduler.order.borrowing`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from scheduler.config import FairnessConfig
from scheduler.order.borrowing import first_with_loan
from scheduler.order.standings import Standings
from scheduler.order.tree_node import Level, Node
from scheduler.policies.base import Child
from scheduler.request import Band
from scheduler.sequence import Sequence


class FairTree(Standings):
    """Order the requests that wait, and keep the accounts of who was served what."""

    def __init__(self, config: FairnessConfig) -> None:
        super().__init__(config)
        # Which children of nodes are next, and for which time and version they were found.
        self._turns: dict[Node, Child | None] = {}
        self._turns_as_of = (math.nan, 0)
        self._next: Sequence | None = None
        self._next_as_of = self._turns_as_of
        self._waiting: set[Sequence] = set()
        self._carried: set[Child] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._waiting

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    def enrol(self, sequence: Sequence, now: float) -> None:
        """Find who pays for a request; it can be pushed and charged until it is expelled."""
        sequence.counter = 0.0
        key = self._node_of[sequence] = self._place_of(sequence.request, now)
        member = key.above.member
        sequence.account = (key.entry, key.above.entry, member.entry, member.above.entry)
        node: Node | None = key
        while node is not None:
            node.num_live += 1
            node = node.parent
        if key.above.num_live == 1:
            self._counters.busy_since_s[key.above.entry] = now

    def expel(self, sequence: Sequence) -> None:
        """Forget a request that has ended and does not wait."""
        assert sequence not in self._waiting
        key = self._node_of.pop(sequence)
        node: Node | None = key
        while node is not None:
            node.num_live -= 1
            node = node.parent
        if not key.above.num_live:
            self._counters.busy_since_s[key.above.entry] = math.inf
        if self.watcher is not None:
            self.watcher.changed(key.above)

    def key_of(self, sequence: Sequence) -> Node:
        """Find the node of the key that a request came with."""
        return self._node_of[sequence]

    def push(self, sequence: Sequence, now: float) -> None:
        """Let a request wait; each node that nothing waited below begins to wait with it."""
        assert sequence not in self._waiting
        self.version += 1
        self._waiting.add(sequence)
        key = self._node_of[sequence]
        self._counters.waiting[key.above.member.entry] += 1
        node: Node | None = key
        child: Child = sequence
        while node is not None:
            node.turns()
            node.num_waiting += 1
            node.waiting_tokens += sequence.num_uncached
            if not node.is_merged:
                if child in node.order:
                    node.look_again(child, now)
                else:
                    self._join(node, child, now)
                child = node
            node = node.parent
        if key.above.num_waiting == 1:
            self._counters.waiting_since_s[key.above.entry] = now
        if self.watcher is not None:
            self.watcher.joined(sequence, key, now)

    def remove(self, sequence: Sequence, now: float) -> None:
        """Take a request out, wherever it stands."""
        self.version += 1
        self._waiting.remove(sequence)
        key = self._node_of[sequence]
        self._counters.waiting[key.above.member.entry] -= 1
        node: Node | None = key
        child: Child = sequence
        while node is not None:
            node.turns()
            node.num_waiting -= 1
            node.waiting_tokens -= sequence.num_uncached
            if not node.is_merged:
                if isinstance(child, Node) and child.num_waiting:
                    node.look_again(child, now)
                else:
                    node.order.discard(child)
                    node.policy.deactivate(child, now)
                    if node.urgent is not None:
                        node.urgent.discard(child)
                child = node
            node = node.parent
        if not key.above.num_waiting:
            self._counters.waiting_since_s[key.above.entry] = math.inf
        if self.watcher is not None:
            self.watcher.left(sequence, key)

    def has_waiting_above(self, band: Band) -> bool:
        """Tell whether something waits in a higher band."""
        return any(node.num_waiting and node.band < band for node in self.bands.values())

    def peek(self, now: float) -> Sequence | None:
        """Show who is next."""
        as_of = now, self.version
        if self._next_as_of != as_of:
            child = self._first(self._root, now)
            while isinstance(child, Node):
                child = self._first(child, now)
            assert child is None or isinstance(child, Sequence)
            self._next, self._next_as_of = child, as_of
        return self._next

    def others(self, num_requests: int, now: float) -> Iterator[Sequence]:
        """Go through the heads of those that come after the next one, in its band alone.

        One of each organisation and of each tenant without; of each tenant where one organisation
        waits alone. Where tenants have no turns of their own, the requests after the next one.
        Nothing may be asked of the tree, or changed in it, before the iterator is done with.
        """
        band = self._first(self._root, now)
        node = band if isinstance(band, Node) else self._root
        if len(node.order) == 1:
            alone = self._first(node, now)
            if isinstance(alone, Node) and alone.level is Level.ORGANISATION:
                node = alone
        turn = self._first(node, now)
        following = (child for child in node.order.in_turn(now) if child is not turn)
        for child in islice(following, num_requests):
            yield child.head(now)

    def note_held(self, members: NDArray[np.intp]) -> None:
        """Note of which tenants, or organisations, rows sit out for others, by their entries."""
        self._counters.was_held[members] = True

    def heads_above(self, band: Band, now: float) -> list[Sequence]:
        """List who is next in each higher band, where bands have turns of their own."""
        return self._heads(lambda other: other < band, now)

    def heads_below(self, band: Band, now: float) -> list[Sequence]:
        """List who is next in each lower band, where bands have turns of their own."""
        return self._heads(lambda other: other > band, now)

    def carry_over(self, before: FairTree) -> None:
        """Take over what nodes were charged, and their counters where the policy has stayed.

        What waited is pushed next; nodes that go on waiting so are not lifted over each other.
        """
        is_same_unit = self.config.unit == before.config.unit
        levels = zip(self._levels, before._levels, strict=True)
        same = [a == b and is_same_unit for a, b in levels]
        above = {before._root: self._root}
        while above:
            below: dict[Node, Node] = {}
            for theirs, mine in above.items():
                children: dict[Child, Child] = {}
                for child in before.below(theirs):
                    my_child = self._child(mine, child.level, child.name, child.band)
                    my_child.take_over(child, counter=same[theirs.level])
                    children[child] = below[child] = my_child
                    if same[theirs.level] and child.num_waiting:
                        self._carried.add(my_child)
                if same[theirs.level]:
                    mine.policy.resume(theirs.policy, children)
            above = below

    def _heads(self, is_asked: Callable[[Band], bool], now: float) -> list[Sequence]:
        if self._root.policy.spans_bands:
            return []
        asked = [node for node in self.bands.values() if is_asked(node.band) and node.num_waiting]
        return [node.head(now) for node in sorted(asked, key=lambda node: node.band)]

    def _join(self, node: Node, child: Child, now: float) -> None:
        if child in self._carried:
            self._carried.discard(child)
        else:
            node.policy.activate(child, node.order, now)
        node.order.add(child, now)
        if node.urgent is not None:
            node.urgent.add(child, now)

    def _first(self, node: Node, now: float) -> Child | None:
        as_of = now, self.version
        if self._turns_as_of != as_of:
            self._turns_as_of = as_of
            self._turns.clear()
        elif node in self._turns:
            return self._turns[node]
        first = node.order.first(now)
        if node.urgent is not None and first is not None:
            first = first_with_loan(node, first, self.config.borrow_tokens, now)
        self._turns[node] = first
        return first
