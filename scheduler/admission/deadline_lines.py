"""How much of a band that lends is due before a request, whoever's it is.

Where tenants may go ahead of their turns to save deadlines (`scheduler.order.borrowing`), what is
due earlier goes first, as far as the loans let it.
"""

from __future__ import annotations

from scheduler.admission.token_line import Place, TokenLine
from scheduler.order import Node
from scheduler.sequence import Sequence


class DeadlineLines:
    """Keep what waits in bands that lend, in the order in which they lend."""

    def __init__(self) -> None:
        self._lines: dict[Node, TokenLine] = {}
        self._places: dict[Sequence, tuple[Node, Place]] = {}

    def joined(self, band: Node, sequence: Sequence, now: float) -> None:
        """Learn that a request waits in a band."""
        if band.urgent is not None:
            place = _place(band, sequence, now)
            self._places[sequence] = band, place
            self._lines.setdefault(band, TokenLine()).add(place, sequence.num_uncached)

    def left(self, sequence: Sequence) -> None:
        """Learn that a request waits no more."""
        known = self._places.pop(sequence, None)
        if known is not None:
            band, place = known
            self._lines[band].remove(place)

    def before(self, band: Node, sequence: Sequence, now: float) -> float:
        """Count the tokens that are due before a request which is not in the queue yet."""
        line = self._lines.get(band)
        return 0.0 if line is None else float(line.before(_place(band, sequence, now)))


def _place(band: Node, sequence: Sequence, now: float) -> Place:
    assert band.urgent is not None
    rank = band.urgent.policy.rank(sequence, now)
    return rank, not sequence.was_admitted, sequence.ordinal
