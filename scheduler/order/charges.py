"""What requests cost their tenants: each useful piece of work once, in the `Unit` that is used.

A prompt is charged whole when its request is admitted, not chunk by chunk: several prompts that
are under way at once would otherwise all have been let in on the strength of a counter that
knows of none of them. What the prefix cache held costs its own price. An output token is charged
when it lands, and what a request holds of the KV cache with every step that comes back, whether it
was in it or not. What a preemption makes the engine compute again is nobody's doing: it goes to
`num_wasted_tokens`. A request that ends before its prompt was run is given back the rest.

With `precharge_output` the expected output is charged with the prompt; tokens beyond it are
charged as they land, and what was not drawn is given back at the end. Source: Sheng et al., OSDI
2024, the variant with length prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from engine.contract import SequenceSlice
from engine.step_cost import StepFeatures
from scheduler.config import FairnessConfig
from scheduler.order.fair_tree import FairTree
from scheduler.order.units import StepPrices, Unit
from scheduler.running import Ledger, RunningSet, Slots
from scheduler.sequence import Sequence


class Charges:
    """Charge a tree for what the engine does."""

    def __init__(self, running: RunningSet) -> None:
        self.num_wasted_tokens = 0
        self._running = running
        self._prices = StepPrices(0.0)

    def go_by(self, config: FairnessConfig, tree: FairTree, unit: Unit) -> None:
        """Charge another tree, or in another unit, from now on."""
        self._precharges = config.precharge_output
        self._tree = tree
        self._unit = unit

    def admit(self, sequence: Sequence, now: float) -> None:
        """Charge a request that was given a slot, the blocks of a prefix hit already taken."""
        if sequence.num_charged:
            # The hit may reach beyond what it has run: others may have computed the same.
            num_wasted = max(0, sequence.num_ran - sequence.num_computed)
            self.num_wasted_tokens += num_wasted
            # It is nobody's doing, but takes its band's turn all the same.
            self._tree.charge_band(sequence, self._unit.input * num_wasted, now)
            return
        self._tree.note_begin(sequence)
        sequence.num_charged = sequence.num_prompt_tokens
        cost = self._unit.prompt(sequence.num_prompt_tokens, sequence.num_computed)
        if self._precharges:
            sequence.num_prepaid = round(sequence.expected_output)
            sequence.prepaid_cost = self._unit.output * sequence.num_prepaid
            cost += sequence.prepaid_cost
        self._tree.charge(sequence, cost, now)

    def begin_step(self, features: StepFeatures) -> None:
        """Price the step whose results come next."""
        self._prices = self._unit.step(features)

    def take_chunks(self, chunks: Iterable[tuple[Sequence, SequenceSlice]], now: float) -> None:
        """Charge what chunks of prompts cost for being small, of what was not computed before."""
        for sequence, chunk in chunks:
            if chunk.start < sequence.num_charged and chunk.start >= sequence.num_ran:
                surcharge = self._unit.chunk_surcharge(chunk.start, chunk.n_tokens)
                if surcharge:
                    self._tree.charge(sequence, surcharge, now)

    def take_outputs(self, sequences: Iterable[Sequence], now: float) -> None:
        """Charge one output token to each request that has drawn one and has no slot any more."""
        if self._precharges:
            sequences = [s for s in sequences if s.num_output_tokens >= s.num_prepaid]
        prices = self._prices
        costs = {s: prices.row + prices.context_token * s.num_tokens for s in sequences}
        self._tree.charge_each(costs, now)

    def take_drawn(self, slots: Slots, now: float) -> None:
        """Charge rows for what they have drawn, before it lands, and all for what they hold."""
        rows, prices = self._running.decode_rows, self._prices
        if self._precharges:
            slots = slots[rows.num_drawn(slots) >= rows.num_prepaid[slots]]
        costs: NDArray[np.float64] = np.full(len(slots), prices.row)
        if prices.context_token:
            costs += prices.context_token * rows.num_tokens[slots]
        if prices.held_token:
            of_slot = self._running.kv_growth.own_by_slot * prices.held_token
            of_slot[slots] += costs
            slots = np.flatnonzero(of_slot)
            costs = of_slot[slots]
        if self._tree.sums_up:
            self._tree.charge_accounts(rows.accounts[slots], costs, now)
        else:
            of_slot = np.zeros(len(rows.accounts))
            of_slot[slots] = costs
            charged = {s: of_slot.item(s.slot) for s in self._running if of_slot[s.slot]}
            self._tree.charge_each(charged, now)

    def taking(self) -> tuple[Ledger, StepPrices] | None:
        """Say where to charge rows and what, for who does that by itself; None where none may."""
        if self._precharges or not self._tree.sums_up:
            return None
        return self._tree.ledger, self._prices

    def note_taken(self, tenants: NDArray[np.intp], bands: Mapping[int, float], now: float) -> None:
        """Note that this was done."""
        self._tree.note_charged(tenants, bands, now)

    def end(self, sequence: Sequence, now: float) -> None:
        """Give back what a request that ends was charged for and has not had."""
        refund = self.unserved(sequence)
        if refund:
            self._tree.charge(sequence, -refund, now)

    def unserved(self, sequence: Sequence) -> float:
        """Say how much of what a request was charged for it has not had."""
        sequence.note_progress()
        if not sequence.num_charged:
            return 0.0
        unserved = self._unit.rest(sequence.num_charged, sequence.num_ran)
        num_unused = sequence.num_prepaid - sequence.num_output_tokens
        if num_unused > 0:
            unserved += sequence.prepaid_cost * num_unused / sequence.num_prepaid
        return unserved
