"""The virtual token counter: whoever has been served least, for its weight, goes next.

A counter rises by the cost of what its child was served, divided by the child's weight, whether
the child still waits or not. A child that begins to wait is lifted to the least counter among
those that wait, or to that of the last one to leave where none does: time spent idle earns
nothing, and coming back forgives nothing. Two children that both wait are then served equally,
for their weights, within twice the cost of the largest thing that is served at once.

A prompt is charged whole before it is computed, and may take a hundred steps. Who begins to wait
meanwhile is lifted to what its siblings have had and not to what they have been charged: they would
otherwise start level with somebody who is still being given what that counter is for. Such start
tags are of start-time fair queueing.

Counters are never brought down: a float counts whole tokens exactly up to 9e15 of them. A refund
is given at the weight of the day; a weight that was changed in between makes it larger or smaller.

Source: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, algorithm 2 and its
weighted form; the artifact leaves out the lift to the last one that left. Goyal, Vin, Cheng,
"Start-time Fair Queuing", SIGCOMM 1996.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.policies.base import Child, Key, Policy, Siblings


class Vtc(Policy):
    """Order children by their counters."""

    reads_head = False
    keeps_accounts = True
    accrues = True

    def __init__(self) -> None:
        self._last_to_leave: Child | None = None

    def key(self, child: Child, now: float) -> Key:
        return (child.counter,)

    def activate(self, child: Child, siblings: Siblings, now: float) -> None:
        floor = self._floor(siblings, now)
        if floor > child.counter:
            child.counter = floor

    def deactivate(self, child: Child, now: float) -> None:
        self._last_to_leave = child

    def is_owed(self, child: Child, siblings: Siblings, now: float) -> bool:
        return child.counter > self._floor(siblings, now)

    def charge(self, child: Child, cost: float, siblings: Siblings, now: float) -> None:
        child.counter += cost / child.weight
        if cost < 0.0:
            siblings.update(child, now)

    def lean(self, child: Child, ratio: float, siblings: Siblings, now: float) -> None:
        ahead = child.counter - self._floor(siblings, now)
        if ahead > 0.0:
            child.counter += ahead / ratio - ahead
            siblings.update(child, now)

    def resume(self, before: Policy, counterparts: Mapping[Child, Child]) -> None:
        assert isinstance(before, Vtc)
        last = before._last_to_leave
        if last is not None:
            self._last_to_leave = counterparts.get(last, last)

    def lead(self, child: Child, first: Child) -> float:
        return (child.counter - first.counter) * child.weight

    def _floor(self, siblings: Siblings, now: float) -> float:
        """Find the least counter that a child may begin to wait with."""
        least = siblings.first(now) or self._last_to_leave
        floor = 0.0 if least is None else least.counter
        for child, cost in siblings.unserved().items():
            floor = min(floor, child.counter - cost / child.weight)
        return floor
