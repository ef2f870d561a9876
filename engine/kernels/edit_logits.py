"""Penalise logits by what a sequence already has, and count what it draws.

A slot without penalties costs a program that ends at once. A penalty is a pass over the slot's
counts; a logit is read and written only where its token was seen.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.operations import IN_PROMPT, PenaltyColumns

_BLOCK = 4096
_ROWS = 128


def penalise(logits: Tensor, columns: PenaltyColumns, slots: Tensor) -> None:
    """Change float32 logits in place; see `engine.sampling.penalties` for what it means."""
    num_rows, vocab_size = logits.shape
    if num_rows:
        _penalise_kernel[(num_rows, triton.cdiv(vocab_size, _BLOCK))](
            logits,
            columns.repetition,
            columns.frequency,
            columns.presence,
            columns.counts,
            slots,
            logits.stride(0),
            columns.counts.stride(0),
            VOCAB_SIZE=vocab_size,
            OUTPUT_BITS=IN_PROMPT - 1,
            BLOCK=_BLOCK,
            num_warps=8,
        )


def count(columns: PenaltyColumns, slots: Tensor, token_ids: Tensor) -> None:
    """Add drawn tokens to the counts; a count stays within its 14 bits."""
    num_rows = len(token_ids)
    if num_rows:
        _count_kernel[(triton.cdiv(num_rows, _ROWS),)](
            columns.counts,
            slots,
            token_ids,
            num_rows,
            columns.counts.stride(0),
            OUTPUT_BITS=IN_PROMPT - 1,
            ROWS=_ROWS,
        )


@triton.jit
def _penalise_kernel(
    logits: tl.tensor,
    repetitions: tl.tensor,
    frequencies: tl.tensor,
    presences: tl.tensor,
    counts: tl.tensor,
    slots: tl.tensor,
    stride: tl.tensor,
    counts_stride: tl.tensor,
    VOCAB_SIZE: tl.constexpr,
    OUTPUT_BITS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    repetition = tl.load(repetitions + slot)
    frequency = tl.load(frequencies + slot)
    presence = tl.load(presences + slot)
    if (repetition == 1) & (frequency == 0) & (presence == 0):
        return
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    seen = tl.load(counts + slot * counts_stride + ids, mask=ids < VOCAB_SIZE, other=0)
    generated = (seen.to(tl.int32) & OUTPUT_BITS).to(tl.float32)
    is_seen = seen != 0
    places = logits + row * stride + ids
    values = tl.load(places, mask=is_seen, other=0.0)
    values = tl.where(values > 0, tl.div_rn(values, repetition), values * repetition)
    values -= frequency * generated
    values -= tl.where(generated > 0, presence, 0.0)
    tl.store(places, values, mask=is_seen)


@triton.jit(do_not_specialize=["num_rows"])
def _count_kernel(
    counts: tl.tensor,
    slots: tl.tensor,
    token_ids: tl.tensor,
    num_rows: tl.tensor,
    counts_stride: tl.tensor,
    OUTPUT_BITS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token_ids_of = tl.load(token_ids + rows, mask=rows < num_rows, other=-1)
    is_drawn = token_ids_of >= 0
    slots_of = tl.load(slots + rows, mask=is_drawn, other=0).to(tl.int64)
    # Slots are distinct but for that of rows that pad, whose counts mean nothing: no atomics.
    places = counts + slots_of * counts_stride + token_ids_of
    seen = tl.load(places, mask=is_drawn, other=0).to(tl.int32)
    is_room = (seen & OUTPUT_BITS) < OUTPUT_BITS
    tl.store(places, (seen + 1).to(tl.int16), mask=is_drawn & is_room)
