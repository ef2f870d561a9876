"""Constants added to single logits: a request's `logit_bias`, and its `min_tokens`.

Until a sequence has `min_tokens` output tokens, the tokens that would end it have a bias of minus
infinity. Entries are kept for the slots that ask for them, and for no other; a step reads those
of its rows as flat lists of (row, token, value).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.contract import NewSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasEntries:
    """Hold what is added to the logits of a batch; all [num_entries]."""

    rows: NDArray[np.int64]
    token_ids: NDArray[np.int64]
    values: NDArray[np.float32]


def add_bias(logits: Tensor, entries: BiasEntries) -> None:
    """Add the entries to logits on a CPU, in place; [num_rows, vocab_size]."""
    index = torch.from_numpy(entries.rows * logits.shape[-1] + entries.token_ids)
    logits.view(-1).index_add_(0, index, torch.from_numpy(entries.values))


class BiasTable:
    """Keep the biases of the slots that ask for any."""

    def __init__(self, *, eos_token_ids: frozenset[int]) -> None:
        self._eos_token_ids = eos_token_ids
        self._biases: dict[int, _Bias] = {}
        # Beside the bias: the position from which end tokens may be drawn.
        self._min_tokens: dict[int, tuple[int, _Bias]] = {}

    def admit(self, sequence: NewSequence) -> None:
        """Note what a sequence asks for."""
        params = sequence.params
        if params.logit_bias:
            token_ids, values = zip(*params.logit_bias, strict=True)
            self._biases[sequence.slot] = _Bias(
                np.array(token_ids, np.int64), np.array(values, np.float32)
            )
        if params.min_tokens > 0:
            end_token_ids = set(params.stop_token_ids)
            if not params.ignore_eos:
                end_token_ids |= self._eos_token_ids
            if end_token_ids:
                masked = np.array(sorted(end_token_ids), np.int64)
                self._min_tokens[sequence.slot] = (
                    sequence.num_prompt_tokens + params.min_tokens,
                    _Bias(masked, np.full(len(masked), -np.inf, np.float32)),
                )

    def entries(self, slots: NDArray[np.int32], positions: NDArray[np.int64]) -> BiasEntries | None:
        """Read what is added to the rows of a batch that draw the tokens at `positions`."""
        if not self._biases and not self._min_tokens:
            return None
        rows: list[int] = []
        found: list[_Bias] = []
        for row, (slot, position) in enumerate(
            zip(slots.tolist(), positions.tolist(), strict=True)
        ):
            bias = self._biases.get(slot)
            if bias is not None:
                rows.append(row)
                found.append(bias)
            minimum = self._min_tokens.get(slot)
            if minimum is None:
                continue
            if position < minimum[0]:
                rows.append(row)
                found.append(minimum[1])
            else:
                del self._min_tokens[slot]
        if not found:
            return None
        return BiasEntries(
            rows=np.repeat(np.array(rows, np.int64), [len(bias.values) for bias in found]),
            token_ids=np.concatenate([bias.token_ids for bias in found]),
            values=np.concatenate([bias.values for bias in found]),
        )

    def release(self, slots: Sequence[int]) -> None:
        """Forget what slots had asked for."""
        if self._biases or self._min_tokens:
            for slot in slots:
                self._biases.pop(slot, None)
                self._min_tokens.pop(slot, None)

    def clear(self) -> None:
        """Forget every slot."""
        self._biases.clear()
        self._min_tokens.clear()


@dataclass(frozen=True, slots=True)
class _Bias:
    token_ids: NDArray[np.int64]
    values: NDArray[np.float32]
