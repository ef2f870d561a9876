"""The children of one node that have something waiting, in the order of a policy.

Heaps of entries with the keys that children had when they were last looked at. A child has one
live entry; others of it are skipped when they surface, and when the dead outnumber the living the
heap is rebuilt, so leaving and moving cost O(log n) and memory is bounded. Keys may have risen
since an entry was made, so the child on top is looked at again and sinks to where it belongs:
charging a child costs nothing here. One heap a class, see `scheduler.policies.base`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from scheduler.policies.base import Child, Key, Policy

# The key, whether it never ran, its place in the order of arrival; its class, the child itself.
_Entry = tuple[Key, bool, int, int, Child]


class Order:
    """Keep children in the order of `policy`."""

    __slots__ = ("_entry_of", "_heaps", "_policy")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._heaps: dict[int, list[_Entry]] = {}
        self._entry_of: dict[Child, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entry_of)

    def __contains__(self, child: Child) -> bool:
        return child in self._entry_of

    def __iter__(self) -> Iterator[Child]:
        return iter(self._entry_of)

    def waiting(self) -> list[Child]:
        return list(self._entry_of)

    def add(self, child: Child, now: float) -> None:
        """Let a child wait."""
        assert child not in self._entry_of
        self._insert(child, self._enter(child, now))

    def discard(self, child: Child) -> None:
        """Take a child out; its entry is skipped when it surfaces."""
        del self._entry_of[child]
        if not self._entry_of:
            self._heaps.clear()

    def update(self, child: Child, now: float) -> None:
        """Look at a child again, which may have moved either way; one that is not in is ignored."""
        if child not in self._entry_of:
            return
        entry = self._enter(child, now)
        if entry[:4] != self._entry_of[child][:4]:
            self._insert(child, entry)

    def first(self, now: float) -> Child | None:
        """Find the child that is next."""
        tops = [self._top(heap, now) for heap in list(self._heaps.values())]
        if len(tops) == 1:
            return tops[0]
        return min(
            (child for child in tops if child is not None),
            key=lambda child: self._rank(child, now),
            default=None,
        )

    def least(self, num_children: int, now: float) -> list[Child]:
        """List the first children; costs a look at each one."""
        return heapq.nsmallest(num_children, self._entry_of, key=lambda c: self._rank(c, now))

    def front(self, num_children: int, now: float) -> list[Child]:
        """List the first child and a few of those that come soon after it, of one class."""
        heap = next(iter(self._heaps.values()), [])
        if self._top(heap, now) is None:
            return []
        return [e[4] for e in heap[:num_children] if self._entry_of.get(e[4]) is e]

    def _rank(self, child: Child, now: float) -> tuple[Key, bool, int]:
        head = child.head(now)
        return self._policy.rank(child, now), not head.was_admitted, head.ordinal

    def _top(self, heap: list[_Entry], now: float) -> Child | None:
        entry_of = self._entry_of
        while heap:
            entry = heap[0]
            child = entry[4]
            if entry_of.get(child) is not entry:
                heapq.heappop(heap)
                continue
            current = self._enter(child, now)
            if current[:4] == entry[:4]:
                return child
            heapq.heappop(heap)
            self._insert(child, current)
        return None

    def _enter(self, child: Child, now: float) -> _Entry:
        head, policy = child.head(now), self._policy
        key = policy.key(child, now)
        return key, not head.was_admitted, head.ordinal, policy.class_of(child), child

    def _insert(self, child: Child, entry: _Entry) -> None:
        heap = self._heaps.setdefault(entry[3], [])
        self._entry_of[child] = entry
        heapq.heappush(heap, entry)
        if len(heap) > 2 * len(self._entry_of) + 64:
            heap[:] = [other for other in heap if self._entry_of.get(other[4]) is other]
            heapq.heapify(heap)
