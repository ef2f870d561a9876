"""How much work of the batch band a step takes along.

Online rows pay for batch work with their pace, and the batch band with its throughput for short
steps: what a step costs for the online rows is done once in each. So it takes as long as that over
what may be lost of the throughput, and `harvest_step_s` at most. Where there are no online rows,
whoever comes waits for the step to end, which is no longer than its length saves anything. Either
is short for first tokens that were promised (`scheduler.step.first_tokens`).

What is too little for any batch work is saved up, as for a row with a long context. One that even
the longest step has no room for is passed. A prompt that reads so much that next to nothing fits
beside it has a longer step now and then, or it would stand there, with its blocks, before the
batches of others.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine.step_cost import StepFeatures
from scheduler.config import ComposerConfig
from scheduler.request import Band
from scheduler.step.budget import StepBudget
from scheduler.step.first_tokens import FirstTokens

# How long others go on without a prompt that reads too much for a step of theirs, in its own steps.
_LONG_REST = 8.0
# Of what a step has for batch work; who reads less has to wait for its rows alone.
_MUCH_READ = 0.5


class Harvest:
    """Grant a step batch work: `begin`, then its rows, then its prompts, and `note` what it took.

    Without a `max_loss`, or before steps can be priced, online rows do not shorten it.
    """

    def __init__(
        self,
        config: ComposerConfig,
        budget: StepBudget,
        first_tokens: FirstTokens,
        max_loss: float,
    ) -> None:
        self._budget = budget
        self._first_tokens = first_tokens
        self._max_loss = max_loss
        self._min_chunk_tokens = config.min_chunk_tokens
        step_s = math.inf if config.max_step_s is None else config.max_step_s
        self._longest_s = min(step_s, config.harvest_step_s)
        self.limit_s = math.inf
        self._promised_s = math.inf
        # Where nothing else is in the step nobody waits for what a prompt reads.
        self._is_alone = False
        self._online_s = 0.0
        # What this step has for batch work beside online rows, and what steps before it had.
        self._offered_s = self._saved_s = 0.0
        # When a prompt may have a step again that is longer than others.
        self._next_long_s = -math.inf

    def begin(self, online: StepFeatures, now: float) -> None:
        """Find out how long a step may take that computes `online` besides."""
        budget, limit_s = self._budget, self._longest_s
        self._offered_s, self._is_alone = 0.0, not online.num_tokens
        self._online_s = online_s = budget.price(online)
        if self._is_alone:
            limit_s = min(limit_s, budget.worthwhile_s(online))
        elif self._max_loss and budget.is_calibrated:
            self._offered_s = online_s / self._max_loss - online_s
            limit_s = min(limit_s, online_s + self._offered_s + self._saved_s)
        least = replace(online, num_prefill_tokens=online.num_prefill_tokens + 1)
        limit_s = self._first_tokens.limit_s(budget.price(least), limit_s, Band.DUE, now)
        self._promised_s = budget.promised_s(now)
        self.limit_s = min(limit_s, self._promised_s)

    def note(self, *, took_any: bool) -> None:
        """Save up what the step had for batch work if that took nothing of it."""
        saved_s = min(self._saved_s + self._offered_s, self._longest_s)
        self._saved_s = 0.0 if took_any else saved_s

    def num_rows(self, step: StepFeatures, num_tokens: NDArray[np.intc]) -> int:
        """Count decoding rows, of so many tokens each and in this order, that `step` may carry."""
        if self.limit_s == math.inf or not len(num_tokens):
            return len(num_tokens)
        contexts = np.cumsum(num_tokens)
        low, high = 0, len(num_tokens)
        while low < high:
            middle = (low + high + 1) // 2
            with_rows = _with_rows(step, middle, contexts.item(middle - 1))
            if self._budget.price(with_rows) <= self.limit_s:
                low = middle
            else:
                high = middle - 1
        return low

    def may_ever_run(self, step: StepFeatures, num_tokens: NDArray[np.intc]) -> NDArray[np.bool_]:
        """Tell which rows, of so many tokens each, the longest step has room for."""
        low, high = 0, int(num_tokens.max())
        while low < high:
            middle = (low + high + 1) // 2
            if self._budget.price(_with_rows(step, 1, middle)) <= self._longest_s:
                low = middle
            else:
                high = middle - 1
        return num_tokens <= low

    def prompt_tokens(self, step: StepFeatures, context: int, room: int, now: float) -> int:
        """Grant `room` tokens at most to a prompt of which a step has to read `context`.

        A step of such prompts alone has a chunk at least.
        """
        budget, limit_s = self._budget, self.limit_s
        if limit_s == math.inf:
            return room
        reads = 0 if self._is_alone else context
        num_tokens = min(room, budget.solve(step, limit_s, room, context=reads))
        if self._is_alone and not step.num_decode_tokens:
            return max(num_tokens, min(room, self._min_chunk_tokens - step.num_prefill_tokens))
        is_enough = not reads or num_tokens >= min(room, self._min_chunk_tokens)
        if is_enough or not self._reads_much(step, context):
            return num_tokens
        if now < self._next_long_s:
            return 0
        num_tokens = min(room, budget.solve(step, self._promised_s, room, context=context))
        chunk = StepFeatures(num_prefill_tokens=num_tokens, prefill_context_tokens=context)
        if num_tokens:
            self._next_long_s = now + _LONG_REST * budget.price(chunk)
        return num_tokens

    def _reads_much(self, step: StepFeatures, context: int) -> bool:
        price = self._budget.price
        least = replace(step, num_prefill_tokens=step.num_prefill_tokens + 1)
        more = step.prefill_context_tokens + context
        reading_s = price(replace(least, prefill_context_tokens=more)) - price(least)
        return reading_s > _MUCH_READ * (self.limit_s - self._online_s)


def _with_rows(step: StepFeatures, num_rows: int, context: int) -> StepFeatures:
    return replace(
        step,
        num_decode_tokens=step.num_decode_tokens + num_rows,
        decode_context_tokens=step.decode_context_tokens + context,
    )
