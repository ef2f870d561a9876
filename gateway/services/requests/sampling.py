"""Which requests are kept in full, by traces and records alike: decided once, when one is over.

Kept is what somebody may ask about: errors, missed promises, what was sent back, what limits of
one process alone let through, and what was held up, by whatever, for longer than a while. Of the
others a share, by the bits of their ids, which the server drew: all processes draw alike, and no
client decides.
"""

from __future__ import annotations

from typing import Final

from gateway.domain.timeline import Timeline

SHARE: Final = 0.05
HELD_UP_S: Final = 1.0
_BITS: Final = 56


class Sampler:
    """Decide of each request that ends, before anybody else is told of it."""

    def __init__(self, *, share: float = SHARE, held_up_s: float = HELD_UP_S) -> None:
        """Keep `share` of what nobody would ask about, and all that was held up so long."""
        self._share = share
        self._held_up_s = held_up_s

    def decide(self, timeline: Timeline) -> None:
        """Set `is_drawn`, of the share, and `is_sampled`, kept for that or for its own sake."""
        timeline.is_drawn = in_share(int(timeline.request_id, 16), self._share)
        timeline.is_sampled = (
            timeline.is_drawn
            or timeline.status >= 400
            or timeline.code != ""
            or timeline.is_degraded
            or any(facts.preemptions for facts in timeline.facts)
            or _held_up_s(timeline) > self._held_up_s
            or bool(timeline.missed())
        )


def in_share(request_id: int, share: float) -> bool:
    """Tell whether a request is of the share that is kept whatever becomes of it."""
    return request_id & ((1 << _BITS) - 1) < share * (1 << _BITS)


def _held_up_s(timeline: Timeline) -> float:
    """Say how long a request took beside what its slowest generation computed."""
    if timeline.ended_s is None:
        return 0.0
    took_s = timeline.ended_s - timeline.began_s
    last = max(timeline.facts, key=lambda facts: facts.ended_s, default=None)
    if last is None or last.admitted_s is None:
        return took_s
    computed_s = last.ended_s - last.admitted_s - sum(last.rests_s.values())
    if last.first_token_s is not None and last.num_prefill_steps > last.num_chunks:
        others_share = 1.0 - last.num_chunks / last.num_prefill_steps
        computed_s -= others_share * (last.first_token_s - last.admitted_s)
    return took_s - computed_s
