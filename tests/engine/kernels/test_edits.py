"""Penalties and counts on the device: the kernels, their twins, and `engine.sampling.penalties`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.kernels import edit_logits
from engine.kernels.operations import IN_PROMPT, PenaltyColumns
from engine.kernels.twins import edits as twin
from engine.sampling.penalties import PenaltyEntries
from engine.sampling.penalties import penalise as penalise_entries

VOCAB_SIZE = 5000
NUM_SLOTS = 4
# Slots of the rows; the last is that of rows that pad. Slot 1 asks for nothing.
SLOTS = [2, 0, 1, 3, NUM_SLOTS, NUM_SLOTS]
REPETITION = [1.3, 1.0, 0.7, 1.0, 1.0]
FREQUENCY = [0.0, 0.0, 0.5, 0.0, 0.0]
PRESENCE = [0.0, 0.0, -0.4, 1.1, 0.0]

Penalise = Callable[[Tensor, PenaltyColumns, Tensor], None]
Count = Callable[[PenaltyColumns, Tensor, Tensor], None]
COUNTS = [pytest.param(edit_logits.count, id="kernel"), pytest.param(twin.count, id="twin")]


def make_columns(device: torch.device) -> PenaltyColumns:
    """Count a few tokens of every slot; some are in the prompt, some in both, most in none."""
    generator = torch.Generator().manual_seed(0)
    shape = (NUM_SLOTS + 1, VOCAB_SIZE)
    generated = torch.randint(1, 5, shape, generator=generator)
    generated *= torch.rand(shape, generator=generator) < 0.1
    in_prompt = torch.rand(shape, generator=generator) < 0.1
    return PenaltyColumns(
        repetition=torch.tensor(REPETITION, device=device),
        frequency=torch.tensor(FREQUENCY, device=device),
        presence=torch.tensor(PRESENCE, device=device),
        counts=(generated + IN_PROMPT * in_prompt).to(device, torch.int16),
    )


def make_logits(device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(len(SLOTS), VOCAB_SIZE, generator=generator) * 4).to(device)


def ints(values: list[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def by_entries(logits: Tensor, columns: PenaltyColumns) -> Tensor:
    """Penalise as the CPU engine does."""
    counts = columns.counts.cpu().numpy()[SLOTS]
    rows, token_ids = np.nonzero(counts)
    slots = np.array(SLOTS)[rows]
    result = logits.cpu().clone()
    penalise_entries(
        result,
        PenaltyEntries(
            rows=rows,
            token_ids=token_ids.astype(np.int32),
            counts=(counts[rows, token_ids] % IN_PROMPT).astype(np.float32),
            repetition=np.array(REPETITION, np.float32)[slots],
            frequency=np.array(FREQUENCY, np.float32)[slots],
            presence=np.array(PRESENCE, np.float32)[slots],
        ),
    )
    return result


@pytest.mark.parametrize(
    "penalise",
    [pytest.param(edit_logits.penalise, id="kernel"), pytest.param(twin.penalise, id="twin")],
)
def test_penalties_are_those_of_the_cpu_engine(penalise: Penalise, device: torch.device) -> None:
    """Every kind of penalty changes what the CPU engine changes, and by as much."""
    columns, logits = make_columns(device), make_logits(device)
    wanted = by_entries(logits, columns)
    penalise(logits, columns, ints(SLOTS, device))
    torch.testing.assert_close(logits.cpu(), wanted, rtol=1e-5, atol=1e-5)


def test_rows_without_penalties_stay_bit_by_bit(device: torch.device) -> None:
    """A slot that asks for nothing, and rows that pad, keep their logits, NaN included."""
    columns, logits = make_columns(device), make_logits(device)
    logits[2, ::7] = torch.nan
    before = logits.clone()
    edit_logits.penalise(logits, columns, ints(SLOTS, device))
    for row in (2, 4, 5):
        assert torch.equal(logits[row].view(torch.int32), before[row].view(torch.int32))


@pytest.mark.parametrize("count", COUNTS)
def test_drawn_tokens_are_counted(count: Count, device: torch.device) -> None:
    """A token adds one to its slot's count; a negative one, as of a row that failed, nothing."""
    columns = make_columns(device)
    wanted = columns.counts[:NUM_SLOTS].clone()
    for slot, token in ((2, 17), (0, VOCAB_SIZE - 1), (3, 0)):
        wanted[slot, token] += 1
    count(columns, ints(SLOTS, device), ints([17, VOCAB_SIZE - 1, -1, 0, 5, -1], device))
    assert torch.equal(columns.counts[:NUM_SLOTS], wanted)


@pytest.mark.parametrize("count", COUNTS)
def test_a_full_count_stays(count: Count, device: torch.device) -> None:
    """The most that 14 bits count is not exceeded, and never turns into the prompt's mark."""
    columns = make_columns(device)
    full = [IN_PROMPT - 1, 2 * IN_PROMPT - 1]
    columns.counts[0, 3], columns.counts[2, 3] = full
    count(columns, ints([0, 2], device), ints([3, 3], device))
    assert [int(columns.counts[slot, 3]) for slot in (0, 2)] == full


def test_many_rows_are_counted(device: torch.device) -> None:
    """Rows beyond one program's are counted too."""
    num_rows = 200
    columns = PenaltyColumns(
        repetition=torch.ones(num_rows + 1, device=device),
        frequency=torch.zeros(num_rows + 1, device=device),
        presence=torch.zeros(num_rows + 1, device=device),
        counts=torch.zeros(num_rows + 1, 8, dtype=torch.int16, device=device),
    )
    slots = torch.arange(num_rows, dtype=torch.int32, device=device)
    edit_logits.count(columns, slots, slots % 8)
    assert (columns.counts[:num_rows].sum(dim=1) == 1).all()
    assert (columns.counts[slots.long(), (slots % 8).long()] == 1).all()
