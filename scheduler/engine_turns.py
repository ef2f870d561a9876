"""Turns between the engines of one process that compute on the same cores.

Two engines that compute at once each take the other's cores away in the middle of an operator, and
how much of the machine a model has would then depend on how many threads it uses and how long its
steps are. So one computes at a time, a step long. Who is next goes by start-time fair queueing
(Goyal et al., SIGCOMM 1996): each place has a tag that grows by the time it computed over its
weight, the smallest tag is next, and who comes back after a rest begins at the tag of who computes
now: a rest is neither owed for nor saved up. While all have work, times are as the weights; who
comes waits for the step that runs, and for nothing else where it is behind its part.

Who has nothing but batch work computes for a weight that is so small that others, who have more
than that, lose `spare_share` of their time at most. It has another tag for that, so that requests
which come meanwhile are next as if it had rested.

A place that goes on computing keeps its turn without giving it up in between: if it left and came
back, the other would always be the only one there, and short steps would alternate with long ones.

Threads: one of each engine. One that does not come back from its step within `PATIENCE_S` holds
nobody up any longer: others then compute beside it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

# Longer than any step that is not stuck; a supervisor looks after the latter (`ENGINE_STALL_S`).
PATIENCE_S: Final = 20.0


class EngineTurns:
    """Let one engine compute at a time; `clock` gives seconds."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._holder: Place | None = None
        # The tag at which who computes now began.
        self._tag = 0.0
        self._waiting: set[Place] = set()

    def place(
        self,
        weight: float,
        *,
        has_spare_work: Callable[[], bool] = lambda: False,
        spare_share: Callable[[], float] = lambda: 0.0,
    ) -> Place:
        """Make a place for an engine.

        Args: `has_spare_work` tells whether all it has to do now may wait for others, and
        `spare_share` what they may lose for that, from 0, which is as much as for all else, to
        less than 1. Both are called by the threads of the others too.
        """
        return Place(self, weight, has_spare_work, spare_share)

    def _take(self, place: Place) -> None:
        with self._changed:
            if self._holder is place:
                self._charge(place)
                self._look_again(place)
                if self._is_first(place):
                    self._tag = place.tag
                    return
                self._holder = None
                self._changed.notify_all()
            else:
                place.join(self._tag)
            self._waiting.add(place)
            while not self._is_next(place):
                self._changed.wait(self._patience_s)
                self._pass_over_the_stuck()
            self._waiting.discard(place)
            self._holder = place
            self._tag = place.tag
            place.since_s = self._clock()

    def _pass_over_the_stuck(self) -> None:
        """Take the turn from who did not come back: it joins again when it does."""
        holder = self._holder
        if holder is not None and self._clock() - holder.since_s >= self._patience_s:
            self._charge(holder)
            self._holder = None
            self._changed.notify_all()

    def _is_next(self, place: Place) -> bool:
        if self._holder is not None:
            return False
        self._look_again(place)
        return self._is_first(place)

    def _is_first(self, place: Place) -> bool:
        return all(place.tag <= other.tag for other in self._waiting)

    def _look_again(self, place: Place) -> None:
        """Have what came for a place, or for one that waits, count from now on."""
        for each in (place, *self._waiting):
            if each.is_spare != each.has_spare_work():
                each.join(self._tag)

    def _leave(self, place: Place) -> None:
        with self._changed:
            if self._holder is place:
                self._charge(place)
                self._holder = None
                self._changed.notify_all()

    def _charge(self, place: Place) -> None:
        now = self._clock()
        weight = place.weight
        if place.is_spare:
            others = [each.weight for each in self._waiting if not each.is_spare]
            weight = place.spare_weight(min(others, default=weight))
        place.tag += (now - place.since_s) / weight
        place.computed_s += now - place.since_s
        place.since_s = now


class Place:
    """An engine's place among the others; `take` and `leave` are for the one thread that drives it.

    `tag` is that of the work it has now, which is batch work alone where it `is_spare`.
    """

    def __init__(
        self,
        turns: EngineTurns,
        weight: float,
        has_spare_work: Callable[[], bool],
        spare_share: Callable[[], float],
    ) -> None:
        assert weight > 0, "who has no weight never computes"
        self._turns = turns
        self.weight = weight
        self.has_spare_work = has_spare_work
        self._spare_share = spare_share
        self.is_spare = False
        self.tag = self._other_tag = 0.0
        self.since_s = 0.0
        self.computed_s = 0.0

    def take(self) -> None:
        """Wait for a turn; one that is held goes on, unless another is further behind."""
        self._turns._take(self)

    def leave(self) -> None:
        """Give the turn up, as there is nothing to compute."""
        self._turns._leave(self)

    def join(self, tag: float) -> None:
        """Stand among others, of whom one computes from `tag` on, with the work there is now."""
        if self.is_spare != self.has_spare_work():
            self.is_spare = not self.is_spare
            self.tag, self._other_tag = self._other_tag, self.tag
        self.tag = max(self.tag, tag)

    def spare_weight(self, weight: float) -> float:
        """Say for what weight batch work computes beside others, of whom one has `weight`."""
        share = self._spare_share()
        return min(weight, self.weight) * share / (1.0 - share) if share else self.weight
