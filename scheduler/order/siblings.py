"""The children of one node that have something waiting, in the order of a policy.

Heaps of entries with the keys that children had when they were last looked at, one heap a class;
see `scheduler.policies.base`. A child has one live entry; others of it are skipped when they
surface, and when the dead outnumber the living the heap is rebuilt, so leaving and moving cost
O(log n) and memory is bounded. Keys may have risen since an entry was made, so the child on top is
looked at again and sinks to where it belongs: charging a child costs nothing here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator, Mapping

from scheduler.policies.base import Child, Key, Policy
from scheduler.sequence import Sequence

# The key, whether it never ran, its place in the order of arrival; its class, the child itself.
_Entry = tuple[Key, bool, int, int, Child]


class Order:
    """Keep children in the order of `policy`."""

    __slots__ = (
        "_entry_of",
        "_heaps",
        "_is_of_one_class",
        "_is_plain",
        "_num_added",
        "_policy",
        "_ranks_by_class",
        "_reads_head",
        "_settles",
        "unserved",
    )

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.unserved: Callable[[], Mapping[Child, float]] = dict
        self._reads_head = policy.reads_head
        kind = type(policy)
        self._is_of_one_class = kind.class_of is Policy.class_of
        # Whether a child's key is all that may change of its entry.
        self._is_plain = not policy.reads_head and self._is_of_one_class
        self._settles, self._ranks_by_class = policy.settles, policy.ranks_by_class
        self._heaps: dict[int, list[_Entry]] = {}
        self._entry_of: dict[Child, _Entry] = {}
        self._num_added = 0

    @property
    def policy(self) -> Policy:
        return self._policy

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
        self._num_added += 1
        self._insert(self._enter(child, self._num_added, now))

    def discard(self, child: Child) -> None:
        """Take a child out; its entry is skipped when it surfaces."""
        del self._entry_of[child]
        if not self._entry_of:
            self._heaps.clear()

    def update(self, child: Child, now: float) -> None:
        """Look at a child again, which may have moved either way; one that is not in is ignored."""
        known = self._entry_of.get(child)
        if known is None:
            return
        entry = self._enter(child, known[2], now)
        if entry[:4] != known[:4]:
            self._insert(entry)

    def first(self, now: float) -> Child | None:
        """Find the child that is next."""
        if len(self._entry_of) == 1:
            return next(iter(self._entry_of))
        if self._is_plain:
            return self._first_plain(now)
        if self._settles and self._is_of_one_class:
            heap, entry_of = self._heaps.get(0, []), self._entry_of
            while heap:
                child = heap[0][4]
                if entry_of.get(child) is not heap[0]:
                    heapq.heappop(heap)
                elif type(child) is Sequence:
                    return child
                else:
                    break
        self._settle(list(self._heaps), now)
        top = self._top(now)
        return None if top is None else top[4]

    def in_turn(self, now: float) -> Generator[Child]:
        """Go through the children in their order; costs O(log n) for each one that is asked for.

        Until the iterator is exhausted, closed or forgotten, nobody else may use the order.
        """
        taken: list[_Entry] = []
        heaps, entry_of = self._heaps, self._entry_of
        unsettled = list(heaps)
        try:
            while len(taken) < len(entry_of):
                if len(taken) == len(entry_of) - 1:
                    entry = self._last_but(taken)
                else:
                    if self._is_plain:
                        self._first_plain(now)
                        entry = heaps[0][0]
                    else:
                        self._settle(unsettled, now)
                        top = self._top(now)
                        assert top is not None, "who waits has an entry"
                        entry = top
                    # Taken out for a moment, so that the next one surfaces.
                    heapq.heappop(heaps[entry[3]])
                    unsettled = [entry[3]]
                taken.append(entry)
                yield entry[4]
        finally:
            for entry in taken:
                heapq.heappush(heaps.setdefault(entry[3], []), entry)

    def _last_but(self, taken: list[_Entry]) -> _Entry:
        """Take out the one entry that is left beside those that are taken."""
        others = {entry[4] for entry in taken}
        (entry,) = (entry for child, entry in self._entry_of.items() if child not in others)
        self._heaps.clear()
        return entry

    def _first_plain(self, now: float) -> Child | None:
        """Do what `first` does where all stand in one heap."""
        heap, entry_of, key_of = self._heaps.get(0, []), self._entry_of, self._policy.key
        while heap:
            entry = heap[0]
            child = entry[4]
            if entry_of.get(child) is not entry:
                heapq.heappop(heap)
                continue
            key = key_of(child, now)
            if key == entry[0]:
                return child
            entry_of[child] = current = (key, *entry[1:])
            heapq.heapreplace(heap, current)
        return None

    def _top(self, now: float) -> _Entry | None:
        """Find the first of all once the first of each class are settled."""
        heaps = self._heaps
        if len(heaps) < 2:
            for heap in heaps.values():
                return heap[0]
            return None
        if self._ranks_by_class:
            return heaps[min(heaps)][0]
        rank = self._policy.rank
        tops = (heap[0] for heap in heaps.values())
        return min(tops, key=lambda entry: (rank(entry[4], now), entry[1], entry[2]))

    def _settle(self, classes: list[int], now: float) -> None:
        """Look at those on top of some classes again, until each stands where it belongs."""
        heaps, entry_of = self._heaps, self._entry_of
        while classes:
            name = classes.pop()
            heap = heaps.get(name, [])
            while heap:
                entry = heap[0]
                child = entry[4]
                if entry_of.get(child) is not entry:
                    heapq.heappop(heap)
                    continue
                if self._stays(entry, now):
                    break
                current = self._enter(child, entry[2], now)
                if current[:4] == entry[:4]:
                    break
                heapq.heappop(heap)
                self._insert(current)
                if current[3] != name:
                    classes.append(current[3])
            else:
                heaps.pop(name, None)

    def _stays(self, entry: _Entry, now: float) -> bool:
        """Tell in short that a child has the key that it had, and its class."""
        child = entry[4]
        if self._settles and type(child) is Sequence:
            return self._is_of_one_class or self._policy.class_of(child, now) == entry[3]
        return self._policy.still_has(child, entry[2], entry[3], now)

    def _enter(self, child: Child, place: int, now: float) -> _Entry:
        policy = self._policy
        if self._is_of_one_class:
            key, name = policy.key(child, now), 0
        else:
            key, name = policy.look(child, now)
        if not self._reads_head:
            return key, False, place, name, child
        head = child.head(now)
        return key, not head.was_admitted, head.ordinal, name, child

    def _insert(self, entry: _Entry) -> None:
        heap = self._heaps.setdefault(entry[3], [])
        self._entry_of[entry[4]] = entry
        heapq.heappush(heap, entry)
        if len(heap) > 2 * len(self._entry_of) + 64:
            heap[:] = [other for other in heap if self._entry_of.get(other[4]) is other]
            heapq.heapify(heap)
