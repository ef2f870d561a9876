"""When batch work gives way for a while: once somebody waits for a first token for long.

A step that carries batch work takes longer. Online rows still keep their pace, but stay for longer,
so there are more of them when a burst of prompts comes, and each step has less time left for those.
By the time that prompts wait, leaving batch work out of the steps that they are in is too late: it
is left out until rows have had the time to end.
"""

from __future__ import annotations

from scheduler.request import Band
from scheduler.running import RunningSet
from scheduler.sequence import Sequence

# As a part of what was promised for the first token: less is nothing to give way for.
_LEAST_PART = 0.05
# What a prompt that was promised nothing counts as promised.
_UNPROMISED_S = 10.0


class GivingWay:
    """Say when batch work is left out of steps; it gives way for `pause_s` at least (0: never)."""

    def __init__(self, pause_s: float, running: RunningSet) -> None:
        self._pause_s = pause_s
        self._running = running
        self._until_s = -1.0

    def is_due(self, head: Sequence | None, now: float) -> bool:
        """Tell whether batch work is to be left out of a step, behind which `head` waits."""
        waits = head is not None and _part_waited(head, now) >= _LEAST_PART
        if waits or any(_part_waited(s, now) >= _LEAST_PART for s in self._running.prefilling):
            self._until_s = now + self._pause_s
        return now < self._until_s


def _part_waited(sequence: Sequence, now: float) -> float:
    """Say what part of its promise a prompt has waited, beyond the time that it takes alone."""
    request = sequence.request
    if request.band >= Band.DUE or sequence.num_output_tokens:
        return 0.0
    promise_s = _UNPROMISED_S if request.slo.ttft_s is None else request.slo.ttft_s
    return (now - request.arrival_s - sequence.prefill_s) / promise_s
