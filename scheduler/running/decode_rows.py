"""The rows that decode, as columns by slot.

A step has hundreds of rows, and all that happens to most of them is that a token is planned and
another one lands. As attributes of objects that lie all over the memory, that was half of what a
step costs the scheduler; as columns it is a few operations for all rows. So while a sequence
decodes, its counts live here and not in the sequence, which reads them here (`Sequence.columns`);
its newest tokens are here too, until somebody asks for them or there are `_MAX_HELD`.

A slot changes hands between the plan of a step and its report. `epochs` counts the hands, so that
who remembers a slot with its epoch can tell whether the row is still the one that it knew.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.outputs import DrawnTokens
from scheduler.request import Band
from scheduler.sequence import Sequence

# Of the size of a pointer: anything else is converted whenever it selects.
Slots = NDArray[np.intp]
_Counts = NDArray[np.intc]

# Tokens of a row that are kept here at most.
_MAX_HELD = 64


class DecodingRows:
    """Keep what changes with each token of up to `num_slots` decoding sequences.

    `num_tokens` counts a row's tokens, those in flight included, and `num_known` those that have
    landed. It draws none beyond `pause_at` and ends at `limit`; `num_prepaid` of its tokens were
    charged before they were drawn. `accounts` are those (`Sequence.account`) of all that have a
    slot, those that do not decode yet included. `turns` say in which step rows last were, and in
    which place (`scheduler.running.rotation`).
    """

    def __init__(self, num_slots: int) -> None:
        def column() -> _Counts:
            return np.zeros(num_slots, dtype=np.intc)

        self.num_tokens, self.num_known = column(), column()
        self.pause_at, self.limit, self.num_prepaid = column(), column(), column()
        self.epochs = column()
        self.bands = column()
        self.turns = np.zeros(num_slots, dtype=np.int64)
        self.accounts = np.zeros((num_slots, 4), dtype=np.intp)
        self.ends_as_model = np.zeros(num_slots, dtype=bool)
        self.has_own_ends = np.zeros(num_slots, dtype=bool)
        self.is_constrained = np.zeros(num_slots, dtype=bool)
        self.num_with_own_ends = 0
        self._num_prompt, self._num_cached, self._num_at_join = column(), column(), column()
        self._num_held = np.zeros(num_slots, dtype=np.intp)
        self._held = np.zeros((num_slots, _MAX_HELD), dtype=np.intc)
        self._is_online = np.zeros(num_slots, dtype=bool)
        self._is_batch = np.zeros(num_slots, dtype=bool)
        self._ordinals = np.zeros(num_slots, dtype=np.int64)
        # Object arrays, so that those of a step are taken out in one operation.
        self._sequences: NDArray[Any] = np.empty(num_slots, dtype=object)
        self._request_ids: NDArray[Any] = np.empty(num_slots, dtype=object)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Name the arrays that a compiled twin works on, which are never replaced."""
        return {
            "epochs": self.epochs,
            "accounts": self.accounts,
            "turns": self.turns,
            "num_tokens": self.num_tokens,
            "num_known": self.num_known,
            "limit": self.limit,
            "num_prompt": self._num_prompt,
            "num_cached": self._num_cached,
            "num_held": self._num_held,
            "held": self._held,
            "ends_as_model": self.ends_as_model,
        }

    def join(self, sequence: Sequence) -> None:
        """Keep the counts of a sequence, a token of which is in flight, from now on."""
        slot = sequence.slot
        self.num_tokens[slot] = sequence.num_tokens
        self.num_known[slot] = self._num_at_join[slot] = len(sequence.token_ids)
        self.pause_at[slot], self.limit[slot] = sequence.pause_at, sequence.limit
        self.num_prepaid[slot] = sequence.num_prepaid
        self.ends_as_model[slot] = sequence.ends_as_model
        has_own_ends = bool(sequence.end_token_ids) and not sequence.ends_as_model
        self.has_own_ends[slot] = has_own_ends
        self.num_with_own_ends += has_own_ends
        self.is_constrained[slot] = sequence.request.params.constraint is not None
        self._num_prompt[slot] = sequence.num_prompt_tokens
        self._num_cached[slot] = sequence.num_cached_tokens
        self._num_held[slot] = 0
        self.bands[slot] = sequence.request.band
        is_batch = sequence.request.band is Band.BATCH
        (self._is_batch if is_batch else self._is_online)[slot] = True
        self._ordinals[slot] = sequence.ordinal
        self._sequences[slot] = sequence
        self._request_ids[slot] = sequence.request_id
        sequence.columns = self

    def leave(self, sequence: Sequence) -> None:
        """Give a sequence its counts and tokens back."""
        slot = sequence.slot
        self.flush(sequence)
        sequence.columns = None
        sequence.num_tokens = self.num_tokens.item(slot)
        sequence.num_computed = sequence.num_tokens - 1
        self._is_online[slot] = self._is_batch[slot] = False
        self.epochs[slot] += 1
        self.num_with_own_ends -= self.has_own_ends.item(slot)
        self._sequences[slot] = self._request_ids[slot] = None

    def promote(self, sequence: Sequence) -> None:
        """Note that a row is not of the batch band any more."""
        slot = sequence.slot
        self.bands[slot] = sequence.request.band
        self._is_batch[slot], self._is_online[slot] = False, True

    def bound(self, sequence: Sequence) -> None:
        """Note that a sequence may draw more, or must end before."""
        self.pause_at[sequence.slot], self.limit[sequence.slot] = sequence.pause_at, sequence.limit

    def flush(self, sequence: Sequence) -> None:
        """Hand a sequence its newest tokens."""
        slot = sequence.slot
        num_held = self._num_held.item(slot)
        if num_held:
            sequence.append_tokens(self._held[slot, :num_held].tobytes())
            self._num_held[slot] = 0

    def online(self) -> Slots:
        """List the slots of rows that decode in every step."""
        return self._is_online.nonzero()[0]

    def batch(self) -> Slots:
        """List the slots of the batch band's rows, the oldest requests first."""
        slots: Slots = self._is_batch.nonzero()[0]
        return slots[np.argsort(self._ordinals[slots])]

    def unpaused(self, slots: Slots) -> Slots:
        """Keep those that may draw one more token.

        What a constraint allows next hangs on the token before, so such a row waits until that
        has landed.
        """
        num_tokens = self.num_tokens[slots]
        may_draw = num_tokens < self.pause_at[slots]
        may_draw &= ~self.is_constrained[slots] | (num_tokens == self.num_known[slots])
        return slots if may_draw.all() else slots[may_draw]

    def wants_block(self, slots: Slots, block_size: int) -> NDArray[np.bool_]:
        """Tell which rows begin a block with the token that they compute next."""
        wants: NDArray[np.bool_] = (self.num_tokens[slots] - 1) % block_size == 0
        return wants

    def sequences(self, slots: Slots) -> list[Sequence]:
        found: list[Sequence] = self._sequences[slots].tolist()
        return found

    def make_room(self, slots: Slots) -> None:
        """Hand rows their newest tokens where there is no room for one more."""
        full = self._num_held[slots] == _MAX_HELD
        if full.any():
            for sequence in self.sequences(slots[full]):
                if sequence is not None:
                    self.flush(sequence)

    def request_ids(self, slots: Slots) -> list[str]:
        """Name the requests that rows are of."""
        found: list[str] = self._request_ids[slots].tolist()
        return found

    def land(self, slots: Slots, token_ids: NDArray[np.intc]) -> NDArray[np.bool_]:
        """Take a token for each row; returns which have reached their limits."""
        self.make_room(slots)
        num_held = self._num_held[slots]
        self._held[slots, num_held] = token_ids
        self._num_held[slots] = num_held + 1
        num_known = self.num_known[slots] + 1
        self.num_known[slots] = num_known
        reached: NDArray[np.bool_] = num_known >= self.limit[slots]
        return reached

    def num_computed(self, sequence: Sequence) -> int:
        """Count the tokens that were computed by steps that have come back, once one has."""
        slot = sequence.slot
        has_landed = self.num_known[slot] > self._num_at_join[slot]
        return self.num_known.item(slot) - 1 if has_landed else 0

    def num_planned(self, sequence: Sequence) -> tuple[int, int]:
        """Count a sequence's tokens, and the steps that it has decoded in since it joined.

        Those in flight are among both.
        """
        num_tokens = self.num_tokens.item(sequence.slot)
        return num_tokens, num_tokens - self._num_at_join.item(sequence.slot) - 1

    def num_drawn(self, slots: Slots) -> _Counts:
        """Count the tokens of their outputs that have landed."""
        return self.num_known[slots] - self._num_prompt[slots]

    def drawn(self, slots: Slots, token_ids: NDArray[np.intc]) -> DrawnTokens:
        """Report each row's token that has landed."""
        return DrawnTokens(
            self.request_ids(slots),
            token_ids,
            self._num_cached[slots],
            self.num_drawn(slots),
        )
