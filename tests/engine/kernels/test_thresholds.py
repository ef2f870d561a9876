"""The search for what filters keep: against their definitions, on rows with and without ties."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.kernels.operations import DrawColumns
from engine.kernels.scan_logits import scan_logits
from engine.kernels.thresholds import find_reach

VOCAB_SIZE = 40
# Few values, so that many tie; some are hidden.
LEVELS = [-math.inf, -20.0, -3.5, -1.0, -0.25, 0.0, 0.0, 1.0, 1.0000001, 2.5, 9.0]
NEAR = 1e-5


def find(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    likely: int = 8,
    held: int = 16,
) -> tuple[Tensor, Tensor]:
    """Find reaches and largest logits of rows that all filter alike."""
    num_rows = len(logits)

    def column(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((num_rows + 1,), value, dtype=dtype, device=logits.device)

    columns = DrawColumns(
        temperature=column(temperature, torch.float32),
        top_k=column(top_k, torch.int32),
        top_p=column(top_p, torch.float32),
        min_p=column(min_p, torch.float32),
        seeds=column(0, torch.int64),
    )
    slots = torch.arange(num_rows, dtype=torch.int32, device=logits.device)
    maxima, masses = scan_logits(logits, columns, slots, part=16, group=2)
    facts = find_reach(
        logits, columns, slots, slots, maxima, masses, group=2, likely=likely, held=held, block=32
    )
    return facts.reach, facts.largest


def check(row: Tensor, reach: float, temperature: float, top_k: int, top_p: float) -> None:
    """Compare what a row keeps with the definitions, value by value; min_p is none."""
    tempered = (row - row.max()) / np.float32(temperature)
    kept = tempered >= -reach
    assert kept.any()
    survivors = tempered
    if 0 < top_k < len(row):
        survivors = tempered[tempered >= tempered.sort(descending=True).values[top_k - 1]]
    total = float(survivors.double().exp().sum())
    for value in tempered.unique():
        above = float(survivors[survivors > value].double().exp().sum()) / total
        if value < survivors.min():
            wanted = False
        elif top_p >= 1 or value == 0:
            wanted = True
        elif abs(above - top_p) < NEAR:
            continue  # rounding may decide
        else:
            wanted = above < top_p
        assert bool(kept[tempered == value].all()) is wanted
        assert bool(kept[tempered == value].any()) is wanted


@pytest.mark.parametrize(("top_k", "temperature"), [(0, 1.3), (7, 0.1), (39, 1.3)])
@pytest.mark.parametrize(("top_p", "held"), [(0.0, 16), (0.3, 2), (0.77, 8), (0.9999, 64)])
def test_rows_with_ties_keep_what_filters_mean(
    top_k: int, temperature: float, top_p: float, held: int, device: torch.device
) -> None:
    """Tokens that tie are kept together, and top-p takes its mass from what top-k left.

    So it is whether a program holds all that is left, or comes never to hold it, as ties are many.
    """
    generator = torch.Generator().manual_seed(top_k + int(1000 * top_p))
    levels = torch.tensor(LEVELS)
    rows = levels[torch.randint(len(LEVELS), (2, VOCAB_SIZE), generator=generator)]
    # A row of three values, few of them finite.
    rows[1] = levels[torch.tensor([0, 4, 7])][torch.randint(3, (VOCAB_SIZE,), generator=generator)]
    reach, largest = find(
        rows.to(device), temperature=temperature, top_k=top_k, top_p=top_p, held=held
    )
    assert torch.equal(largest.cpu(), rows.amax(dim=-1))
    for row, found in zip(rows, reach.tolist(), strict=True):
        check(row, found, temperature, top_k, top_p)


@pytest.mark.parametrize("top_k", [0, 3, 20])
@pytest.mark.parametrize(("top_p", "held"), [(0.5, 2), (0.95, 64), (1.0, 8)])
def test_rows_without_ties_keep_what_filters_mean(
    top_k: int, top_p: float, held: int, device: torch.device
) -> None:
    """Real-valued rows keep exactly the tokens that top-k and top-p name."""
    rows = torch.randn(2, VOCAB_SIZE, generator=torch.Generator().manual_seed(top_k)).to(device)
    reach, _ = find(rows, temperature=0.7, top_k=top_k, top_p=top_p, held=held)
    for row, found in zip(rows.cpu(), reach.tolist(), strict=True):
        check(row, found, 0.7, top_k, top_p)
        if top_p == 1.0 and top_k:
            distances = (row.max() - row) / np.float32(0.7)
            assert int((distances <= found).sum()) == top_k


@pytest.mark.parametrize("top_p", [0.45, 0.6, 0.8])
def test_top_p_takes_its_share_of_what_top_k_left(top_p: float, device: torch.device) -> None:
    """What a program holds beyond the k likeliest tokens is no part of the mass."""
    row = torch.linspace(0, 3.9, VOCAB_SIZE)
    reach, _ = find(row[None].to(device), top_k=6, top_p=top_p, likely=16, held=32)
    check(row, float(reach[0]), 1.0, 6, top_p)


def test_ties_beyond_the_groups_that_are_read_count(device: torch.device) -> None:
    """Tokens that tie with the k-th weigh what they do, in more groups than a program reads."""
    row = torch.full((VOCAB_SIZE,), -5.0)
    row[::2] = 0.0
    row[0] = 1.0
    reach, _ = find(row[None].to(device), top_k=3, top_p=0.15, likely=4, held=64)
    check(row, float(reach[0]), 1.0, 3, 0.15)
    assert float(reach[0]) == 1.0


def test_a_part_that_is_hidden_weighs_nothing(device: torch.device) -> None:
    """Where all logits of a part are minus infinity, the mass of the others is what counts."""
    row = torch.linspace(0, 3.9, VOCAB_SIZE)
    row[16:32] = -math.inf
    reach, _ = find(row[None].to(device), top_p=0.6)
    check(row, float(reach[0]), 1.0, 0, 0.6)


def test_neighbouring_floats_are_told_apart(device: torch.device) -> None:
    """The search is exact: logits that differ in their last bit are on two sides of a limit."""
    row = torch.linspace(-5, 0, VOCAB_SIZE)
    row[3] = -0.5
    row[4] = float(np.nextafter(np.float32(-0.5), np.float32(-1)))
    reach, _ = find(row[None].to(device), top_k=int((row >= -0.5).sum()))
    kept = row >= -float(reach[0])
    assert bool(kept[3])
    assert not bool(kept[4])


@pytest.mark.parametrize("min_p", [0.05, 0.5, 1.0])
def test_min_p_keeps_a_share_of_the_likeliest(min_p: float, device: torch.device) -> None:
    """A token stays if it is at least min_p times as likely as the likeliest."""
    rows = torch.randn(2, VOCAB_SIZE, generator=torch.Generator().manual_seed(5)).to(device)
    reach, _ = find(rows, min_p=min_p)
    shares = (rows - rows.amax(dim=-1, keepdim=True)).exp()
    kept = rows - rows.amax(dim=-1, keepdim=True) >= -reach[:, None]
    assert torch.equal(kept, shares >= min_p)


def test_the_strictest_filter_wins(device: torch.device) -> None:
    """What top-k and top-p would keep, min-p may still drop."""
    row = torch.linspace(0, 1, VOCAB_SIZE, device=device)[None]
    by_rank, _ = find(row, top_k=10, top_p=0.9)
    by_share, _ = find(row, min_p=0.95)
    assert find(row, top_k=10, top_p=0.9, min_p=0.95)[0] == torch.minimum(by_rank, by_share)


def test_rows_without_filters_keep_everything(device: torch.device) -> None:
    """Their reach is infinite; that of greedy rows and of failed ones is -1."""
    rows = torch.randn(2, VOCAB_SIZE, device=device)
    assert find(rows)[0].tolist() == [math.inf, math.inf]
    assert find(rows, top_k=VOCAB_SIZE)[0].tolist() == [math.inf, math.inf]
    assert find(rows, temperature=0.0, top_k=3)[0].tolist() == [-1.0, -1.0]
    for poison in (math.inf, -math.inf):
        assert find(torch.full_like(rows, poison), top_k=3)[0].tolist() == [-1.0, -1.0]


def test_equal_rows_have_equal_reaches(device: torch.device) -> None:
    """The search depends on the row alone, to the last bit."""
    row = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(9)).to(device)
    alone, _ = find(row, top_p=0.8)
    together, _ = find(row.expand(4, -1).contiguous(), top_p=0.8)
    assert together.tolist() == alone.tolist() * 4
