"""How long a request that joins now waits for its first token.

What goes before it in the policies' own order (`queue_ahead`), over how fast that drains
(`drain_rate`). The longer a request waits, the more comes that goes before it: what two rounds
show of that is carried on to where it ends, and looked at once more if it is not too long anyway.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from scheduler.admission.drain_rate import DrainRate
from scheduler.admission.queue_ahead import Ahead, QueueAhead
from scheduler.running import RunningSet
from scheduler.sequence import Sequence

# What a band is owed before it is served out of turn; see `scheduler.policies.bands`.
_TURN_TOKENS = 4096.0
_FAST_GROWTH = 0.25
_MAX_GROWTH = 0.95


class Wait(NamedTuple):
    """Say how long a request is served itself, after what is in flight, and waits for others."""

    sure_s: float
    queue_s: float


class Waits:
    """Predict waits from now, in seconds."""

    def __init__(self, queue: QueueAhead, rate: DrainRate, running: RunningSet) -> None:
        self._queue = queue
        self._rate = rate
        self._running = running

    def predict(self, sequence: Sequence, now: float, *, at_most_s: float = math.inf) -> Wait:
        """Predict the wait of a request; one above `at_most_s` is not looked at as closely."""
        if not len(self._running) and not len(self._queue.tree):
            self._rate.rest(now)
        sure_s = self._wait_s(sequence.num_uncached, now)
        # The rate is that of usual prompts: one of a hundred thousand tokens takes longer for each.
        sure_s = max(sure_s, sequence.prefill_s)
        first_s = self._round_s(sequence, now, 0.0, sure_s)
        if first_s <= sure_s:
            return Wait(sure_s, 0.0)
        second_s = self._round_s(sequence, now, first_s, sure_s)
        growth = min(second_s / first_s - 1.0, _MAX_GROWTH)
        end_s = first_s / (1.0 - growth)
        # Less comes when queues of others run empty meanwhile, which shows only in the long run.
        if growth > _FAST_GROWTH and second_s <= at_most_s:
            end_s = self._round_s(sequence, now, end_s, sure_s)
        # Counters of others may rise faster than its tenant's own: then less goes before it.
        return Wait(sure_s, max(0.0, end_s - sure_s))

    def at_share(self, sequence: Sequence, now: float, horizon_s: float, sure_s: float) -> Wait:
        """Predict the wait had its tenant queued no more than its share, with `sure_s` known."""
        fair_s = self._round_s(sequence, now, horizon_s, sure_s, at_share=True)
        return Wait(sure_s, fair_s - sure_s)

    def _under_way_before(self, sequence: Sequence, now: float) -> int:
        """Count the tokens of prompts under way that go before a request (`step.turns`).

        Its own tenant is charged for what it has to compute by then: who is between goes before it.
        """
        prefilling = self._running.prefilling
        if not prefilling:
            return 0
        tree, request = self._queue.tree, sequence.request
        cost = tree.unit.input * sequence.num_uncached / request.member_weight
        counter = tree.share_counter_of_next(sequence, now) + cost

        def goes_before(other: Sequence) -> bool:
            if other.request.band != request.band:
                return other.request.band < request.band
            if other.request.member != request.member:
                ahead = counter - tree.share_counters(other)[0]
                if ahead:
                    return ahead > 0.0
            return other.deadline_s <= sequence.deadline_s

        return sum(
            other.num_tokens - other.num_computed for other in prefilling if goes_before(other)
        )

    def _round_s(
        self,
        sequence: Sequence,
        now: float,
        horizon_s: float,
        sure_s: float,
        *,
        at_share: bool = False,
    ) -> float:
        """Predict the wait of a request, given what comes in `horizon_s`."""
        draws_per_s = 1.0 / self._rate.step_s if self._rate.step_s else 0.0
        ahead = self._queue.before(
            sequence, now, horizon_s, draws_per_s=draws_per_s, at_share=at_share
        )
        drain_s = self._drain_s(ahead, sequence, now)
        slot_s = 0.0
        # Those below make room for it.
        if not self._running.has_below(sequence.request.band):
            num_ahead = self._queue.num_requests(ahead.higher + ahead.others)
            slot_s = self._rate.slots_s(num_ahead + 1.0 - self._running.num_free_slots)
        return max(drain_s, sure_s + slot_s)

    def _drain_s(self, ahead: Ahead, sequence: Sequence, now: float) -> float:
        """Predict when the bands above are empty and it is served, or their share has served it."""
        own = ahead.others + ahead.own + self._under_way_before(sequence, now)
        wait_s = self._wait_s((own + ahead.higher) / (1.0 - ahead.lower_share), now)
        if ahead.share and ahead.higher:
            wait_s = min(wait_s, self._wait_s((own + _TURN_TOKENS) / ahead.share, now))
        return wait_s

    def _wait_s(self, num_tokens: float, now: float) -> float:
        """Predict when so many tokens are computed, and what may fill the last of their steps."""
        in_flight_s = None
        if len(self._running):
            times = self._running.in_flight_times
            in_flight_s = times.left_s(now, stretch=times.error)
        waiting = sum(band.waiting_tokens for band in self._queue.tree.bands.values())
        # Nothing comes after it that counts, or more than a step holds.
        if self._rate.fits_a_step(num_tokens) or not self._rate.fits_a_step(waiting):
            return self._rate.wait_s(num_tokens, in_flight_s=in_flight_s)
        begun = sum(other.num_tokens - other.num_computed for other in self._running.prefilling)
        return self._rate.wait_s(
            num_tokens,
            in_flight_s=in_flight_s,
            num_behind=waiting + begun,
            inflow_per_s=self._queue.inflow_per_s(now),
        )
