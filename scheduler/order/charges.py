"""What requests cost their tenants: each useful token once.

A prompt is charged whole when its request is admitted, not chunk by chunk: several prompts that
are under way at once would otherwise all have been let in on the strength of a counter that
knows of none of them. What the prefix cache held costs its own price. An output token is charged
when it lands. What a preemption makes the engine compute again is nobody's doing: it goes to
`num_wasted_tokens`. A request that ends before its prompt was run is given back the rest.

With `precharge_output` the expected output is charged with the prompt; tokens beyond it are
charged as they land, and what was not drawn is given back at the end. Source: Sheng et al., OSDI
2024, the variant with length prediction.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from scheduler.config import FairnessConfig
from scheduler.order.fair_tree import FairTree
from scheduler.running import DecodingRows, Slots
from scheduler.sequence import Sequence


class Charges:
    """Charge a tree for what the engine does."""

    def __init__(self, config: FairnessConfig, tree: FairTree) -> None:
        self.num_wasted_tokens = 0
        self.go_by(config, tree)

    def go_by(self, config: FairnessConfig, tree: FairTree) -> None:
        """Charge at other prices, or another tree, from now on."""
        self._prices = config.prices
        self._precharges = config.precharge_output
        self._tree = tree

    def admit(self, sequence: Sequence, now: float) -> None:
        """Charge a request that was given a slot, the blocks of a prefix hit already taken."""
        if sequence.num_charged:
            # The hit may reach beyond what it has run: others may have computed the same.
            self.num_wasted_tokens += max(0, sequence.num_ran - sequence.num_computed)
            return
        num_cached = sequence.num_computed
        sequence.num_charged = sequence.num_prompt_tokens
        num_uncached = sequence.num_prompt_tokens - num_cached
        cost = self._prices.input * num_uncached + self._prices.cached_input * num_cached
        if self._precharges:
            sequence.num_prepaid = round(sequence.expected_output)
            cost += self._prices.output * sequence.num_prepaid
        self._tree.charge(sequence, cost, now)

    def take_outputs(self, sequences: Many[Sequence], now: float) -> None:
        """Charge one output token to each request that has drawn one."""
        if self._precharges:
            sequences = [s for s in sequences if s.num_output_tokens >= s.num_prepaid]
        self._tree.charge_each(sequences, self._prices.output, now)

    def take_drawn(self, rows: DecodingRows, slots: Slots, now: float) -> None:
        """Do the same for rows that decode, before what they have drawn has landed."""
        if self._precharges:
            slots = slots[rows.num_drawn(slots) >= rows.num_prepaid[slots]]
        if self._tree.sums_up:
            self._tree.charge_accounts(rows.accounts[slots], self._prices.output, now)
        else:
            self._tree.charge_each(rows.sequences(slots), self._prices.output, now)

    def end(self, sequence: Sequence, now: float) -> None:
        """Give back what a request that ends was charged for and has not had."""
        sequence.note_progress()
        refund = 0.0
        if sequence.num_charged:
            refund = self._prices.input * max(0, sequence.num_charged - sequence.num_ran)
            num_unused = sequence.num_prepaid - sequence.num_output_tokens
            refund += self._prices.output * max(0, num_unused)
        if refund:
            self._tree.charge(sequence, -refund, now)
