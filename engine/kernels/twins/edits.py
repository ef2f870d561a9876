"""Penalise logits by what a sequence already has, and count what it draws, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.operations import IN_PROMPT, PenaltyColumns


def penalise(logits: Tensor, columns: PenaltyColumns, slots: Tensor) -> None:
    """Change float32 logits in place; see `engine.sampling.penalties` for what it means."""
    counts = columns.counts[slots]
    generated = (counts & (IN_PROMPT - 1)).float()
    repetition = columns.repetition[slots][:, None]
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    values = torch.where(counts != 0, repeated, logits)
    values -= columns.frequency[slots][:, None] * generated
    values -= columns.presence[slots][:, None] * (generated > 0)
    logits.copy_(torch.where(counts != 0, values, logits))


def count(columns: PenaltyColumns, slots: Tensor, token_ids: Tensor) -> None:
    """Add drawn tokens to the counts; a count stays within its 14 bits."""
    columns_of = token_ids.clamp(min=0)
    counts = columns.counts[slots, columns_of]
    is_room = (counts & (IN_PROMPT - 1)) < IN_PROMPT - 1
    # Only rows that pad share a slot, and what is counted there means nothing.
    columns.counts[slots, columns_of] = counts + ((token_ids >= 0) & is_room).to(counts.dtype)
