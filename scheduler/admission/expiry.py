"""Which of the requests that wait run out of time next.

A heap by when nobody waits for them any more. Requests that end or begin before that leave their
entries behind, which are dropped when they surface, and all at once when they outnumber the rest.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from scheduler.order import NEVER, given_up_s
from scheduler.sequence import Sequence, Status

_Entry = tuple[float, int, Sequence]


class Expiry:
    """Remember requests by the time of their first token at the latest."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._rebuild_at = 64

    def add(self, sequence: Sequence) -> None:
        """Remember a request that was taken in; one that nothing was promised is not."""
        expires_s = given_up_s(sequence.request)
        if expires_s == NEVER:
            return
        if len(self._heap) >= self._rebuild_at:
            self._heap = [entry for entry in self._heap if _may_expire(entry[2])]
            heapq.heapify(self._heap)
            self._rebuild_at = max(64, 2 * len(self._heap))
        heapq.heappush(self._heap, (expires_s, sequence.ordinal, sequence))

    @property
    def next_s(self) -> float:
        """Say when the next one is to be looked at; infinity where there is none."""
        return self._heap[0][0] if self._heap else NEVER

    def take(self, now: float, *, at_most: int) -> Iterator[Sequence]:
        """Forget and hand out the requests that wait and whose time has come, the earliest first.

        It looks at no more than `at_most`; the others are left for the next call.
        """
        for _ in range(at_most):
            if not self._heap or self._heap[0][0] > now:
                return
            sequence = heapq.heappop(self._heap)[2]
            if sequence.status is Status.WAITING and _may_expire(sequence):
                yield sequence


def _may_expire(sequence: Sequence) -> bool:
    """Tell whether a request has no token yet; one that was sent back may have."""
    return sequence.status is not Status.FINISHED and not sequence.num_output_tokens
