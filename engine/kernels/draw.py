"""Draw a token a row by Gumbel-max, with a row's vocabulary split over several programs.

Each part of a row finds its largest logit; `engine.kernels.thresholds` then says how far below the
row's largest a token may be; each part adds the noise of `engine.sampling.sampler` to what is that
near, and finds the largest again; a last kernel compares the parts. A greedy row needs the first
and the last alone, and its other programs end at once. Parts are of one size whatever the batch is,
and of equal values the first wins, so a row's token depends on nothing but the row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.operations import DrawColumns
from engine.kernels.thresholds import find_reach

# Tokens of a row in a program, and how many it reads at once.
PART = 8192
BLOCK = 1024


def draw(
    logits: Tensor,
    columns: DrawColumns,
    slots: Tensor,
    positions: Tensor,
    tokens: Tensor,
    *,
    part: int = PART,
    block: int = BLOCK,
) -> Tensor:
    """Draw one token a row, and store it; see `Operations.draw`. `part`, `block` are for tests."""
    num_rows, vocab_size = logits.shape
    drawn = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    if num_rows == 0:
        return drawn
    num_parts = triton.cdiv(vocab_size, part)
    partial, partial_ids = _empty_parts(num_rows, num_parts, logits.device)
    noisy, noisy_ids = _empty_parts(num_rows, num_parts, logits.device)
    sizes = {"VOCAB_SIZE": vocab_size, "PART": part, "BLOCK": block}
    grid = (num_rows, num_parts)
    _find_largest_kernel[grid](logits, partial, partial_ids, logits.stride(0), **sizes)
    reach, largest = find_reach(logits, columns, slots, partial)
    _find_noisy_kernel[grid](
        logits,
        reach,
        largest,
        columns.temperature,
        columns.seeds,
        slots,
        positions,
        noisy,
        noisy_ids,
        logits.stride(0),
        **sizes,
    )
    _choose_kernel[(num_rows,)](
        partial,
        partial_ids,
        noisy,
        noisy_ids,
        reach,
        largest,
        slots,
        positions,
        tokens,
        drawn,
        tokens.stride(0),
        NUM_PARTS=num_parts,
        PARTS_BLOCK=triton.next_power_of_2(num_parts),
        num_warps=1,
    )
    return drawn


def _empty_parts(num_rows: int, num_parts: int, device: torch.device) -> tuple[Tensor, Tensor]:
    values = torch.empty((num_rows, num_parts), dtype=torch.float32, device=device)
    return values, torch.empty_like(values, dtype=torch.int32)


@triton.jit
def _find_largest_kernel(
    logits: tl.tensor,
    partial: tl.tensor,
    partial_ids: tl.tensor,
    stride: tl.tensor,
    VOCAB_SIZE: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Find the first of the largest logits of a part; NaN counts as infinite."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    lanes = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], -float("inf"), tl.float32)
    best_ids = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, PART, BLOCK):
        ids = part * PART + begin + lanes
        is_token = ids < VOCAB_SIZE
        values = tl.load(logits + row * stride + ids, mask=is_token, other=-float("inf"))
        values = values.to(tl.float32)
        values = tl.where(values == values, values, float("inf"))
        is_better = values > best
        best = tl.where(is_better, values, best)
        best_ids = tl.where(is_better, ids, best_ids)
    _store_first(best, best_ids, partial, partial_ids, row, part)


@triton.jit
def _find_noisy_kernel(
    logits: tl.tensor,
    reaches: tl.tensor,
    largests: tl.tensor,
    temperatures: tl.tensor,
    seeds: tl.tensor,
    slots: tl.tensor,
    positions: tl.tensor,
    noisy: tl.tensor,
    noisy_ids: tl.tensor,
    stride: tl.tensor,
    VOCAB_SIZE: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Find the largest of what a part's tokens within reach are with their noise."""
    row = tl.program_id(0).to(tl.int64)
    reach = tl.load(reaches + row)
    if reach < 0:
        return
    part = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    largest, temperature = tl.load(largests + row), tl.load(temperatures + slot)
    low, high = _row_keys(tl.load(seeds + slot), tl.load(positions + row))
    lanes = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], -float("inf"), tl.float32)
    best_ids = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, PART, BLOCK):
        ids = part * PART + begin + lanes
        is_token = ids < VOCAB_SIZE
        bare = tl.load(logits + row * stride + ids, mask=is_token, other=-float("inf"))
        tempered = tl.div_rn(bare.to(tl.float32) - largest, temperature)
        is_near = tempered >= -reach
        # Noise costs more than all else, and filters leave little that needs it.
        if tl.max(is_near.to(tl.int32), axis=0) > 0:
            values = tempered + _gumbel_noise(ids, low, high)
            is_better = is_near & (values > best)
            best = tl.where(is_better, values, best)
            best_ids = tl.where(is_better, ids, best_ids)
    _store_first(best, best_ids, noisy, noisy_ids, row, part)


@triton.jit
def _choose_kernel(
    partial: tl.tensor,
    partial_ids: tl.tensor,
    noisy: tl.tensor,
    noisy_ids: tl.tensor,
    reaches: tl.tensor,
    largests: tl.tensor,
    slots: tl.tensor,
    positions: tl.tensor,
    tokens: tl.tensor,
    drawn: tl.tensor,
    tokens_stride: tl.tensor,
    NUM_PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
) -> None:
    """Compare the parts of a row: their noisy values where it draws, else the bare ones.

    Rows that pad store their token where nobody reads, several in one place.
    """
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, PARTS_BLOCK)
    is_part = parts < NUM_PARTS
    places = row * NUM_PARTS + parts
    if tl.load(reaches + row) >= 0:
        values = tl.load(noisy + places, mask=is_part, other=-float("inf"))
        ids = tl.load(noisy_ids + places, mask=is_part, other=0)
    else:
        values = tl.load(partial + places, mask=is_part, other=-float("inf"))
        ids = tl.load(partial_ids + places, mask=is_part, other=0)
    token = _first_of_largest(values, ids, tl.max(values, axis=0))
    is_finite = tl.abs(tl.load(largests + row)) < float("inf")
    tl.store(drawn + row, tl.where(is_finite, token, -1))
    place = tl.load(slots + row).to(tl.int64) * tokens_stride + tl.load(positions + row)
    tl.store(tokens + place, tl.where(is_finite, token, 0))


@triton.jit
def _store_first(
    best: tl.tensor,
    best_ids: tl.tensor,
    values: tl.tensor,
    ids: tl.tensor,
    row: tl.tensor,
    part: tl.tensor,
) -> None:
    """Store the largest of `best`, and the least id that has it."""
    place = row * tl.num_programs(1) + part
    largest = tl.max(best, axis=0)
    tl.store(values + place, largest)
    tl.store(ids + place, _first_of_largest(best, best_ids, largest))


@triton.jit
def _first_of_largest(values: tl.tensor, ids: tl.tensor, largest: tl.tensor) -> tl.tensor:
    return tl.min(tl.where(values == largest, ids, 0x7FFFFFFF), axis=0)


@triton.jit
def _gumbel_noise(ids: tl.tensor, low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Make noise from a row's keys and token ids; see `engine.sampling.sampler`."""
    bits = _mix(ids.to(tl.uint32) ^ low)
    bits = _mix(bits + high) & 0x7FFFFFFF
    uniform = (bits.to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10  # 2^-31
    uniform = tl.minimum(uniform, 0.99999994)  # 1 - 2^-24
    return -tl.log(-_log1p(-uniform))


@triton.jit
def _log1p(x: tl.tensor) -> tl.tensor:
    """Compute log(1 + x), exact to rounding for small x too (Kahan; Goldberg 1991, theorem 4)."""
    shifted = 1.0 + x
    kept = shifted - 1.0
    is_lost = kept == 0.0
    kept = tl.where(is_lost, 1.0, kept)
    return tl.where(is_lost, x, tl.log(shifted) * tl.div_rn(x, kept))


@triton.jit
def _row_keys(seed: tl.tensor, position: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Hash a row's seed and position to two words of 32 bits."""
    key = _split_mix(seed.to(tl.uint64, bitcast=True))
    key = _split_mix(key + position.to(tl.uint64))
    return key.to(tl.uint32), (key >> 32).to(tl.uint32)


@triton.jit
def _split_mix(x: tl.tensor) -> tl.tensor:
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _mix(bits: tl.tensor) -> tl.tensor:
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return bits ^ (bits >> 16)
