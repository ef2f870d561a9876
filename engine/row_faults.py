"""Keeps rows that cannot be computed out of the steps of the others.

A step computes all rows at once, so one sequence that breaks it takes its neighbours along: a
token id beyond the vocabulary raises in the embedding, and a bias of such an id is worse, since
it is added to the logits of the next row. Callers check what they are sent; this is the second
lock. A sequence is looked at once, when it is admitted. One that is refused never reaches the
state table, and every plan that has a row of it is cut until its slot is released: with two
steps in flight the second was planned before the first could say so.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from engine.contract import DecodeRows, NewSequence, StepPlan, StepResult
from engine.errors import EngineError

_INT64_END = 1 << 63


class RowFaults:
    """Remember which slots hold a sequence that cannot be computed, and why."""

    def __init__(self, *, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._reasons: dict[int, str] = {}

    def screen(self, plan: StepPlan) -> tuple[StepPlan, Mapping[int, str]]:
        """Return the plan without the rows that cannot be computed, and why by their slots."""
        reasons = self._reasons
        if reasons:
            for slot in plan.released:
                reasons.pop(slot, None)
        for sequence in plan.admitted:
            reason = find_fault(sequence, self._vocab_size)
            if reason is not None:
                reasons[sequence.slot] = reason
        if not reasons:
            return plan, {}
        rows = (*plan.decodes.slots, *(piece.slot for piece in plan.slices))
        failed = {slot: reasons[slot] for slot in rows if slot in reasons}
        return _without(plan, reasons), failed

    def clear(self) -> None:
        """Forget every slot."""
        self._reasons.clear()


def refuse_failed_proof(result: StepResult) -> None:
    """Raise `EngineError` where the engine's own first rows failed: no other could be computed."""
    if result.failed:
        raise EngineError(
            f"the model cannot compute one token: {next(iter(result.failed.values()))}; choose "
            "dtype float32, or fetch its files again"
        )


def find_fault(sequence: NewSequence, vocab_size: int) -> str | None:
    """Say why a sequence would break the step that it is in; None: it would not."""
    params = sequence.params
    if not _are_tokens(sequence.token_ids, vocab_size):
        return "a token id is outside the vocabulary"
    if not _are_tokens((token_id for token_id, _ in params.logit_bias), vocab_size):
        return "a logit_bias is of a token outside the vocabulary"
    if params.min_tokens > 0 and not _are_tokens(params.stop_token_ids, vocab_size):
        return "a stop token is outside the vocabulary"
    for name in ("top_k", "logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        if value is not None and not 0 <= value < _INT64_END:
            return f"{name} {value} is out of bounds"
    return None


def _are_tokens(token_ids: Iterable[int], vocab_size: int) -> bool:
    if isinstance(token_ids, array):
        ids = np.frombuffer(token_ids, np.intc)
        return bool(ids.min() >= 0 and ids.max() < vocab_size)
    return all(0 <= token_id < vocab_size for token_id in token_ids)


def _without(plan: StepPlan, slots: Collection[int]) -> StepPlan:
    decodes = DecodeRows()
    rows = plan.decodes
    for row in zip(rows.slots, rows.positions, rows.new_block_ids, strict=True):
        if row[0] not in slots:
            decodes.append(*row)
    return replace(
        plan,
        decodes=decodes,
        slices=[piece for piece in plan.slices if piece.slot not in slots],
        admitted=[sequence for sequence in plan.admitted if sequence.slot not in slots],
    )
