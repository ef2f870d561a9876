"""Draw a token a row by Gumbel-max, with a row's vocabulary split over several programs.

Four kernels, of which a greedy row needs the first and the last, and the others end at once:

1. `engine.kernels.scan_logits` finds the largest logit of each group of neighbours.
2. `engine.kernels.thresholds` finds how far below the row's largest a token may be.
3. The race: each part of a row bounds the races of what is that near from below, which takes no
   logarithm, and keeps its least and its second. It reads no group that has nothing near.
4. The choice: the least of each part gets its exact value. The largest of these is drawn, unless a
   second could exceed it: then the tokens of its part get theirs.

Of equal values the first wins, so that a row's token depends on nothing but the row.
`engine.kernels.gumbel_noise` has the bounds, and why none that could win is missed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gumbel_noise import MARGIN, NOTHING, hash_ids, hash_part, least_race, noise
from engine.kernels.operations import DrawColumns
from engine.kernels.pivot_search import EVERYTHING
from engine.kernels.scan_logits import GROUP, PART, exp2_rate, scan_logits
from engine.kernels.thresholds import HELD, LIKELY, RowFacts, find_reach

# With so many rows there are enough programs where each has several parts, of which a greedy row's
# all end at once.
MANY_ROWS = 32
_PARTS_EACH = 4


def draw(
    logits: Tensor,
    columns: DrawColumns,
    slots: Tensor,
    positions: Tensor,
    tokens: Tensor,
    *,
    part: int = PART,
    group: int = GROUP,
    likely: int = LIKELY,
    held: int = HELD,
    many_rows: int = MANY_ROWS,
) -> Tensor:
    """Draw one token a row, and store it; see `Operations.draw`. What follows is for tests."""
    num_rows, vocab_size = logits.shape
    drawn = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    if num_rows == 0:
        return drawn
    maxima, masses = scan_logits(logits, columns, slots, part=part, group=group)
    facts = find_reach(
        logits, columns, slots, positions, maxima, masses, group=group, likely=likely, held=held
    )
    num_each = _PARTS_EACH if num_rows >= many_rows else 1
    races = _race(logits, columns, slots, maxima, facts, num_each, part=part, group=group)
    num_parts = maxima.shape[1]
    _choose_kernel[(num_rows,)](
        logits,
        races,
        facts.reach,
        facts.largest,
        facts.first,
        facts.keys,
        columns.temperature,
        slots,
        positions,
        tokens,
        drawn,
        logits.stride(0),
        tokens.stride(0),
        VOCAB_SIZE=vocab_size,
        NUM_PARTS=num_parts,
        PARTS_BLOCK=triton.next_power_of_2(num_parts),
        PART=part,
        GROUP=group,
    )
    return drawn


def _race(
    logits: Tensor,
    columns: DrawColumns,
    slots: Tensor,
    maxima: Tensor,
    facts: RowFacts,
    num_each: int,
    *,
    part: int,
    group: int,
) -> Tensor:
    """Find the least and the second race of each part, some parts a program.

    Returns: int32, [R, num_parts, 2].
    """
    # Where an id within its part takes the place of a race's last bits, enough must be left of it.
    assert part <= 2048, "a part's ids fit into the bits that the margin leaves"
    num_rows, num_parts, _ = maxima.shape
    races = torch.empty((num_rows, num_parts, 2), dtype=torch.int32, device=logits.device)
    _race_kernel[(num_rows, triton.cdiv(num_parts, num_each))](
        logits,
        maxima,
        facts.reach,
        facts.largest,
        facts.keys,
        columns.temperature,
        slots,
        races,
        logits.stride(0),
        VOCAB_SIZE=logits.shape[1],
        NUM_PARTS=num_parts,
        NUM_EACH=num_each,
        PART=part,
        GROUP=group,
        num_warps=8,
    )
    return races


@triton.jit
def _race_kernel(
    logits: tl.tensor,
    maxima: tl.tensor,
    reaches: tl.tensor,
    largests: tl.tensor,
    keys: tl.tensor,
    temperatures: tl.tensor,
    slots: tl.tensor,
    races: tl.tensor,
    stride: tl.tensor,
    VOCAB_SIZE: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    NUM_EACH: tl.constexpr,
    PART: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    reach = tl.load(reaches + row)
    if reach < 0:
        return
    largest = tl.load(largests + row)
    temperature = tl.load(temperatures + tl.load(slots + row))
    low, high = _load_keys(keys, row)
    for step in range(NUM_EACH):
        part = tl.program_id(1) * NUM_EACH + step
        if part < NUM_PARTS:
            place = row * NUM_PARTS + part
            least, second = _race_part(
                logits + row * stride, maxima + place * (PART // GROUP), part * PART,
                largest, temperature, reach, low, high, VOCAB_SIZE, PART, GROUP,
            )  # fmt: skip
            tl.store(races + place * 2, least)
            tl.store(races + place * 2 + 1, second)


@triton.jit
def _race_part(
    logits: tl.tensor,
    maxima: tl.tensor,
    begin: tl.tensor,
    largest: tl.tensor,
    temperature: tl.tensor,
    reach: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    VOCAB_SIZE: tl.constexpr,
    PART: tl.constexpr,
    GROUP: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Find the least and the second race of the tokens within reach, each with its place."""
    groups = tl.arange(0, PART // GROUP)
    is_group = _is_near(tl.load(maxima + groups), largest, temperature, reach)
    least = tl.full((), NOTHING, tl.int32)
    second = least
    if tl.max(is_group.to(tl.int32), axis=0) > 0:
        offsets = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        ids = begin + offsets
        is_near = is_group[:, None] & (ids < VOCAB_SIZE)
        values = tl.load(logits + ids, mask=is_near, other=-float("inf")).to(tl.float32)
        if reach < float("inf"):
            is_near = is_near & _is_near(values, largest, temperature, reach)
        bits = hash_part(begin, offsets, low, high)
        race = least_race(bits, (largest - values) * exp2_rate(temperature))
        # Races are positive: the order of their bits is theirs, and the last ones say whose it is.
        found = tl.where(is_near, (race.to(tl.int32, bitcast=True) & -PART) | offsets, NOTHING)
        least = tl.min(found)
        second = tl.min(tl.where(found == least, NOTHING, found))
    return least, second


@triton.jit
def _choose_kernel(
    logits: tl.tensor,
    races: tl.tensor,
    reaches: tl.tensor,
    largests: tl.tensor,
    firsts: tl.tensor,
    keys: tl.tensor,
    temperatures: tl.tensor,
    slots: tl.tensor,
    positions: tl.tensor,
    tokens: tl.tensor,
    drawn: tl.tensor,
    stride: tl.tensor,
    tokens_stride: tl.tensor,
    VOCAB_SIZE: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
    PART: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """Find the row's token: of the parts' least races where it draws, else of the first group.

    Rows that pad store their token where nobody reads, several in one place.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    reach, largest = tl.load(reaches + row), tl.load(largests + row)
    slot = tl.load(slots + row).to(tl.int64)
    token = tl.full((), 0, tl.int32)
    if reach >= 0:
        temperature = tl.load(temperatures + slot)
        low, high = _load_keys(keys, row)
        parts = tl.arange(0, PARTS_BLOCK)
        places = races + (row * NUM_PARTS + parts) * 2
        least = tl.load(places, mask=parts < NUM_PARTS, other=NOTHING)
        second = tl.load(places + 1, mask=parts < NUM_PARTS, other=NOTHING)
        ids = parts * PART + (least & (PART - 1))
        best, token = _find_best(
            logits, ids, least != NOTHING, largest, temperature, reach, low, high
        )
        # What is beyond infinity is hidden, or not there.
        second = tl.minimum(second, EVERYTHING).to(tl.float32, bitcast=True)
        is_open = (best + tl.log(second) <= MARGIN).to(tl.int32)
        if tl.max(is_open, axis=0) > 0:
            for part in range(NUM_PARTS):
                if tl.max(tl.where(parts == part, is_open, 0), axis=0) > 0:
                    part_ids = part * PART + tl.arange(0, PART)
                    is_token = part_ids < VOCAB_SIZE
                    part_best, part_token = _find_best(
                        logits, part_ids, is_token, largest, temperature, reach, low, high
                    )
                    is_first = (part_best == best) & (part_token < token)
                    token = tl.where((part_best > best) | is_first, part_token, token)
                    best = tl.maximum(best, part_best)
    else:
        group_ids = tl.load(firsts + row) * GROUP + tl.arange(0, GROUP)
        group = tl.load(logits + group_ids, mask=group_ids < VOCAB_SIZE, other=-float("inf"))
        token = _first_of_largest(group.to(tl.float32), group_ids, largest)
    is_finite = tl.abs(largest) < float("inf")
    tl.store(drawn + row, tl.where(is_finite, token, -1))
    place = slot * tokens_stride + tl.load(positions + row)
    tl.store(tokens + place, tl.where(is_finite, token, 0))


@triton.jit
def _find_best(
    logits: tl.tensor,
    ids: tl.tensor,
    is_token: tl.tensor,
    largest: tl.tensor,
    temperature: tl.tensor,
    reach: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
    """Find the largest exact value of some tokens within reach, and the first that has it."""
    bare = tl.load(logits + ids, mask=is_token, other=-float("inf")).to(tl.float32)
    is_near = is_token & _is_near(bare, largest, temperature, reach)
    values = tl.div_rn(bare - largest, temperature) + noise(hash_ids(ids, low, high))
    values = tl.where(is_near, values, -float("inf"))
    best = tl.max(values, axis=0)
    return best, _first_of_largest(values, ids, best)


@triton.jit
def _is_near(
    values: tl.tensor, largest: tl.tensor, temperature: tl.tensor, reach: tl.tensor
) -> tl.tensor:
    return tl.div_rn(values - largest, temperature) >= -reach


@triton.jit
def _load_keys(keys: tl.tensor, row: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    low, high = tl.load(keys + row * 2), tl.load(keys + row * 2 + 1)
    return low.to(tl.uint32, bitcast=True), high.to(tl.uint32, bitcast=True)


@triton.jit
def _first_of_largest(values: tl.tensor, ids: tl.tensor, largest: tl.tensor) -> tl.tensor:
    return tl.min(tl.where(values == largest, ids, 0x7FFFFFFF), axis=0)
