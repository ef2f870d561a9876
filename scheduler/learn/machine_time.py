"""Charges tenants for the time that their requests take on the machine, and the memory they hold.

All of it is priced by the step model, in what a token of a prompt takes in a full chunk, but for
what it attends to. So the unit stays what it was when the model learns that the machine is
faster, and what is given in tokens elsewhere (what a band is owed, what may be borrowed) keeps its
meaning. The prices of one step add up to about the time it takes:

- A prompt pays for its tokens, for what they attend to and for its context being read by each full
  chunk: P(k) = k + a·k² for its first k tokens. A chunk that is smaller reads as much for fewer
  tokens, and pays the difference (`chunk_surcharge`).
- A row pays for its token, for its context, and an equal part of what the step costs whoever is
  in it, but for what the prompts in it have paid of that.
- Who holds all of the KV cache pays as much as the whole step, who holds a tenth of it a tenth:
  memory that is held is as good as time that is taken, once either is short.

Source of the idea: Equinox, arXiv 2508.16646, charges by what a machine spends.
"""

from __future__ import annotations

from engine.contract import EngineInfo
from engine.step_cost import StepFeatures
from scheduler.learn.step_model import StepModel
from scheduler.order import StepPrices

# Steps by which the price of an output token that is predicted follows those that were charged.
_OUTPUT_STEPS = 16.0
_LEAST_S = 1e-12


class MachineTime:
    """Price by what `step_model` has learned of the engine that `info` describes."""

    input = 1.0

    def __init__(self, info: EngineInfo, step_model: StepModel) -> None:
        self._step_model = step_model
        self._chunk_tokens = info.max_num_batched_tokens
        self._full_chunk = StepFeatures(
            num_prefill_tokens=self._chunk_tokens, prefill_attended_tokens=0
        )
        self._capacity_tokens = info.num_blocks * info.block_size
        self.output = self._prices_of(StepFeatures(num_decode_tokens=info.max_num_seqs)).row

    def prompt(self, num_tokens: int, num_cached: int) -> float:
        return self.rest(num_tokens, num_cached)

    def rest(self, num_tokens: int, num_had: int) -> float:
        if num_had >= num_tokens:
            return 0.0
        attended, read = self._context_prices()
        square = (attended + read / self._chunk_tokens) / 2
        return (num_tokens - num_had) * (1.0 + square * (num_tokens + num_had))

    def chunk_surcharge(self, start: int, num_tokens: int) -> float:
        if not start:
            return 0.0
        _, read = self._context_prices()
        return read * start * max(0.0, 1.0 - num_tokens / self._chunk_tokens)

    def step(self, features: StepFeatures) -> StepPrices:
        prices = self._prices_of(features)
        num_rows = features.num_decode_tokens
        if num_rows:
            mean = prices.row + prices.context_token * features.decode_context_tokens / num_rows
            self.output += (mean - self.output) / _OUTPUT_STEPS
        return prices

    def _prices_of(self, features: StepFeatures) -> StepPrices:
        model, token_s = self._step_model, self._token_s
        step_s = model.price_s(features)
        held = step_s / token_s / self._capacity_tokens
        num_rows = features.num_decode_tokens
        if not num_rows:
            return StepPrices(0.0, 0.0, held)
        *_, read_s, attended_s = model.coefficients(features)
        # As rows are told to sit out by; of contexts that are alike steps say nothing.
        context_s = max(0.0, model.decode_costs(num_rows)[2])
        rows_s = (
            step_s
            - token_s * features.num_prefill_tokens
            - read_s * features.prefill_context_tokens
            - attended_s * features.prefill_attended_tokens
            - context_s * features.decode_context_tokens
        )
        return StepPrices(max(0.0, rows_s) / num_rows / token_s, context_s / token_s, held)

    def _context_prices(self) -> tuple[float, float]:
        """Price each token that one of a prompt attends to, and each that a chunk reads."""
        _, _, _, _, read_s, attended_s = self._step_model.coefficients(self._full_chunk)
        token_s = self._token_s
        return attended_s / token_s, read_s / token_s

    @property
    def _token_s(self) -> float:
        return max(_LEAST_S, self._step_model.price_s(self._full_chunk) / self._chunk_tokens)
