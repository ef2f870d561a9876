"""The requests that wait: one flat level, ordered by one policy.

The fair tree takes this class's place, with the same methods, when there are more levels.
Keys are fixed when a request starts to wait, so a heap orders them; a request that leaves before
its turn is only counted out, and skipped when it surfaces, so that leaving costs O(1). When the
dead outnumber the living the heap is rebuilt, which bounds memory.
"""

from __future__ import annotations

import heapq
from collections import Counter

from scheduler.policies.base import Policy
from scheduler.sequence import Sequence

_Entry = tuple[tuple[float, ...], bool, int, Sequence]


class WaitingQueue:
    """Keep waiting sequences in the order of `policy`."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._heap: list[_Entry] = []
        self._live: set[int] = set()
        self._num_of_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.ordinal in self._live

    def push(self, sequence: Sequence, now: float) -> None:
        """Let a sequence wait; one that has run before goes ahead of its equals."""
        assert sequence.ordinal not in self._live
        request = sequence.request
        if not self._num_of_tenant[request.tenant_id]:
            self.policy.activate(request, now)
        self._num_of_tenant[request.tenant_id] += 1
        self._live.add(sequence.ordinal)
        key = self.policy.key(request, now)
        heapq.heappush(self._heap, (key, not sequence.was_admitted, sequence.ordinal, sequence))

    def peek(self) -> Sequence | None:
        """Show who is next."""
        while self._heap and self._heap[0][2] not in self._live:
            heapq.heappop(self._heap)
        return self._heap[0][3] if self._heap else None

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        self._live.remove(sequence.ordinal)
        tenant_id = sequence.request.tenant_id
        self._num_of_tenant[tenant_id] -= 1
        if not self._num_of_tenant[tenant_id]:
            del self._num_of_tenant[tenant_id]
        if self._heap[0][3] is sequence:
            heapq.heappop(self._heap)
        elif len(self._heap) > 2 * len(self._live) + 64:
            self._heap = [entry for entry in self._heap if entry[2] in self._live]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        self._heap.clear()
        self._live.clear()
        self._num_of_tenant.clear()
