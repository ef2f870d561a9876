"""Who runs out of time next."""

from __future__ import annotations

import math

from scheduler.admission.expiry import Expiry
from scheduler.sequence import Status
from waiting import make_sequence


def test_they_come_out_when_their_time_has_come() -> None:
    """The first of the two times counts, and who was promised nothing never comes out."""
    expiry = Expiry()
    late = make_sequence(4, arrival_s=1.0, ttft_s=5.0)
    early = make_sequence(4, arrival_s=2.0, ttft_s=5.0, expires_s=3.0)
    for sequence in (late, early, make_sequence(4)):
        expiry.add(sequence)
    assert list(expiry.take(2.9, at_most=9)) == []
    assert list(expiry.take(3.0, at_most=9)) == [early]
    assert list(expiry.take(math.inf, at_most=9)) == [late]


def test_only_so_many_are_looked_at_in_one_call() -> None:
    """The earliest come out first, the others with the next calls, those that ended count too."""
    expiry = Expiry()
    sequences = [make_sequence(4, ttft_s=1.0 + n) for n in range(10)]
    for sequence in reversed(sequences):
        expiry.add(sequence)
    sequences[1].status = Status.FINISHED
    taken = [list(expiry.take(99.0, at_most=4)) for _ in range(4)]
    assert taken == [[sequences[0], *sequences[2:4]], sequences[4:8], sequences[8:], []]


def test_who_has_ended_or_begun_is_let_be() -> None:
    """A request that runs, or that has drawn and was sent back, has nothing to expire."""
    expiry = Expiry()
    ended, running, begun = (make_sequence(4, ttft_s=1.0) for _ in range(3))
    for sequence in (ended, running, begun):
        expiry.add(sequence)
    ended.status, running.status = Status.FINISHED, Status.RUNNING
    begun.append_tokens((7).to_bytes(4, "little"))
    assert list(expiry.take(10.0, at_most=9)) == []


def test_memory_follows_those_who_wait() -> None:
    """Those that have ended long before their time are not kept until then."""
    expiry = Expiry()
    for _ in range(10_000):
        sequence = make_sequence(1, ttft_s=1e9)
        expiry.add(sequence)
        sequence.status = Status.FINISHED
    assert len(expiry._heap) <= 64
