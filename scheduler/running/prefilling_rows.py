"""The rows whose prompts are being computed, as columns by slot.

Dozens of prompts may be under way at once, of which a step goes on with a few. Whose turn it is,
and which of them are long, is asked of all in every step.
"""

from __future__ import annotations

import numpy as np

from scheduler.request import Band
from scheduler.running.decode_rows import Slots
from scheduler.sequence import Sequence


class PrefillingRows:
    """Keep what orders the prompts of up to `num_slots` rows, but for those of the batch band.

    `num_tokens` are to be computed of a row, of which `num_computed` are. One that `is_promised`
    has a time to its first token, and `weights` are of who has a share of the band.
    """

    def __init__(self, num_slots: int) -> None:
        self.bands, self.ordinals, self.num_tokens, self.num_computed = np.zeros(
            (4, num_slots), dtype=np.int64
        )
        self.deadlines_s = np.zeros(num_slots)
        self.is_promised = np.zeros(num_slots, dtype=bool)
        self.weights = np.ones(num_slots)
        self._is_online = np.zeros(num_slots, dtype=bool)

    def join(self, sequence: Sequence) -> None:
        """Note a sequence that has been given a slot."""
        slot, band = sequence.slot, sequence.request.band
        self.bands[slot] = band
        self.ordinals[slot] = sequence.ordinal
        self.num_tokens[slot] = sequence.num_tokens
        self.num_computed[slot] = sequence.num_computed
        self.deadlines_s[slot] = sequence.deadline_s
        self.is_promised[slot] = sequence.start_by_s < np.inf
        self.weights[slot] = sequence.request.member_weight
        self._is_online[slot] = band is not Band.BATCH

    def advance(self, sequence: Sequence) -> None:
        """Note how far a sequence is computed."""
        self.num_computed[sequence.slot] = sequence.num_computed

    def leave(self, slot: int) -> None:
        """Forget a row."""
        self._is_online[slot] = False

    def clear(self) -> None:
        """Forget all rows."""
        self._is_online[:] = False

    def online(self) -> Slots:
        """List the slots of all rows."""
        return self._is_online.nonzero()[0]

    def num_left(self) -> int:
        """Count the tokens of all rows that are still to be computed."""
        slots = self.online()
        return int(self.num_tokens[slots].sum() - self.num_computed[slots].sum())
