"""Which steps carry on a prompt that reads more of what it has than it computes.

A chunk of a long prompt attends to all that came before it, however few tokens it has, and every
row of that step waits for it: beside one prompt of a hundred thousand tokens each token of
everybody takes ten times as long. So where others go before it, by band and by how far their
tenants are ahead, such a prompt sits steps out, and has one for itself then. Two steps take longer
than one with the work of both: it sits out until that has cost `max_loss` of the time, or until
others had their share of the time since its last step. Only one such prompt is in a step, and no
others where these are done sooner in a step of their own: a machine may read what a prompt has in
a step of few tokens for less than in one of many.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine.step_cost import StepFeatures, attended_tokens
from scheduler.learn import StepModel
from scheduler.order import FairTree
from scheduler.running import RunningSet, Slots
from scheduler.sequence import Sequence

# What it reads may cost, over what its tokens do, before a chunk counts as one of a long prompt.
_DEAR = 0.25
# How long others may go on without it, in steps of its own: while its tenant is ahead of theirs, a
# higher band waits, or its tenant is behind.
_AHEAD = 4.0
_BELOW = 8.0
_BEHIND = 0.5


class LongPrompts:
    """Choose the prompts that sit a step out, one step after the other.

    `gone` is the one that the step carries on; the one in the slot `due` has rested enough and
    goes first in it, since what it reads is the same for a few tokens as for many. `aside` has too,
    and waits for a step without other prompts, for one step at most.
    """

    def __init__(
        self, max_loss: float, running: RunningSet, tree: FairTree, step_model: StepModel
    ) -> None:
        self._lost_per_s = max_loss / (1.0 - max_loss)
        self._running = running
        self._tree = tree
        self._step_model = step_model
        self._rested_s = self._lost_s = 0.0
        # The chunk that sits this step out, and what it would take alone.
        self._resting: StepFeatures | None = None
        self.due: int | None = None
        self.aside: Sequence | None = None
        self.gone: Sequence | None = None

    def begin(self) -> None:
        """Begin a step."""
        self._resting = self.due = self.gone = None

    def find_long(self, slots: Slots, room: int, step: StepFeatures) -> list[int]:
        """Find who is long of those that prefill in these slots, by their places.

        Each may have up to `room` tokens in a step that has `step`.
        """
        if not (len(slots) and self._running.holdings.has_shares):
            return []
        rows = self._running.prefilling_rows
        contexts = rows.num_computed[slots]
        num_tokens = np.minimum(rows.num_tokens[slots] - contexts, room)
        are_long = self.are_long(num_tokens, contexts, step) & (contexts > 0)
        places: list[int] = are_long.nonzero()[0].tolist()
        return places

    def are_long(
        self,
        num_tokens: NDArray[np.int64] | Many[int],
        contexts: NDArray[np.int64] | Many[int],
        step: StepFeatures,
    ) -> NDArray[np.bool_]:
        """Tell which chunks of prompts with these contexts read more than they compute."""
        with_s, plain_s = self._step_model.prices_with_chunk_s(
            step, np.asarray(num_tokens), np.asarray(contexts)
        )
        step_s = self._step_model.price_s(step)
        are_long: NDArray[np.bool_] = with_s - plain_s > _DEAR * (plain_s - step_s)
        return are_long

    def rests(
        self,
        sequence: Sequence,
        room: int,
        *,
        goes_first: bool,
        context: int | None = None,
        beside: StepFeatures | None = None,
    ) -> bool:
        """Tell whether a long prompt sits out a step, of which it may have up to `room` tokens.

        `goes_first`: no other prompt goes before it. `context`: of its tokens that are computed.
        `beside`: what the step has so far, where it has other prompts.
        """
        if not self._running.holdings.has_shares:
            return False
        if self.gone is not None:
            return True
        context = sequence.num_computed if context is None else context
        chunk = _chunk(min(room, sequence.num_tokens - context), context)
        rest = self._rest_for(sequence, goes_first)
        if not rest or self._is_due(chunk, rest):
            if rest and beside is not None and self._stands_aside(sequence, beside, chunk):
                return True
            self.gone, self.aside = sequence, None
            self.due = sequence.slot if rest else None
            self._rested_s = self._lost_s = 0.0
            return False
        if self._resting is None:
            self._resting = chunk
        return True

    def note(self, step: StepFeatures) -> None:
        """Learn what the step has come to be."""
        chunk = self._resting
        if chunk is None or self.gone is not None:
            return
        price_s = self._step_model.price_s
        alone_s = price_s(step)
        self._rested_s += alone_s
        self._lost_s += max(0.0, alone_s + price_s(chunk) - price_s(_joined(step, chunk)))

    def room_beside(self, step: StepFeatures, room: int) -> int:
        """Say how many tokens other prompts may have in a step with a long one, of `room`."""
        others = replace(step, num_prefill_tokens=room, prefill_context_tokens=0)
        chunk = _chunk(step.num_prefill_tokens, step.prefill_context_tokens)
        return 0 if self._is_dear(others, chunk) else room

    def _stands_aside(self, sequence: Sequence, step: StepFeatures, chunk: StepFeatures) -> bool:
        if self.aside is sequence or not self._is_dear(step, chunk):
            return False
        self.aside = sequence
        return True

    def _is_dear(self, step: StepFeatures, chunk: StepFeatures) -> bool:
        """Tell whether a chunk takes longer in a step than one of its own would."""
        price_s = self._step_model.price_s
        return price_s(step) + price_s(chunk) < price_s(_joined(step, chunk))

    def _is_due(self, chunk: StepFeatures, rest: float) -> bool:
        step_s = self._step_model.price_s(chunk)
        lost_s = 0.0 if rest == _BELOW else self._lost_s
        return lost_s >= self._lost_per_s * step_s or self._rested_s >= rest * step_s

    def _rest_for(self, sequence: Sequence, goes_first: bool) -> float:
        """Say for how long a prompt rests, in steps of its own, for those that run or wait."""
        request = sequence.request
        if self._tree.has_waiting_above(request.band):
            return _BELOW
        if not goes_first:
            return _AHEAD
        counter, _ = self._tree.share_counters(sequence)
        rest = 0.0
        for row in self._running.holdings.some_rows():
            other = row.request
            if other.member == request.member or other.band > request.band:
                continue
            if other.band < request.band or self._tree.share_counters(row)[0] < counter:
                return _AHEAD
            rest = _BEHIND
        return rest


def _chunk(num_tokens: int, context: int) -> StepFeatures:
    return StepFeatures(num_prefill_tokens=num_tokens, prefill_context_tokens=context)


def _joined(step: StepFeatures, chunk: StepFeatures) -> StepFeatures:
    return replace(
        step,
        num_prefill_tokens=step.num_prefill_tokens + chunk.num_prefill_tokens,
        prefill_context_tokens=step.prefill_context_tokens + chunk.prefill_context_tokens,
        prefill_attended_tokens=step.prefill_attended_tokens
        + attended_tokens(chunk.prefill_context_tokens, chunk.num_prefill_tokens),
    )
