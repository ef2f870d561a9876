"""The begin of a step: the kernel and its twin store blocks and embed the newest tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.kernels.begin_step import begin_step
from engine.kernels.operations import StepInputs
from engine.kernels.twins import begin_step as twin

NO_COLUMN, NOBODY = 4, 3


@pytest.mark.parametrize("how", [begin_step, twin.begin_step])
@pytest.mark.parametrize("size", [64, 96])
def test_blocks_are_stored_and_tokens_embedded(
    how: Callable[[Tensor, StepInputs], Tensor], size: int, device: torch.device
) -> None:
    """A row that brings a block has it in its column, and tokens are those of their positions."""

    def ints(values: object) -> Tensor:
        return torch.as_tensor(values, dtype=torch.int32).to(device)

    tokens = torch.arange(28, dtype=torch.int32).view(4, 7).to(device)
    tables = ints([[10 * slot + column for column in range(5)] for slot in range(4)])
    before = tables.clone()
    # Slot 2 decodes its token 6 and gets block 77, slot 0 has tokens 1 to 3; the rest pads.
    inputs = StepInputs(
        slots=ints([2, 0, NOBODY]),
        query_starts=ints([0, 1, 4, 4]),
        context_lens=ints([7, 4, 0]),
        token_rows=ints([0, 1, 1, 1, -1, -1]),
        positions=ints([6, 1, 2, 3, 0, 0]),
        tiles=None,
        piece_rows=ints([0]),
        piece_starts=ints([0, 1, 1, 1]),
        block_tables=tables,
        block_columns=ints([3, NO_COLUMN, NO_COLUMN]),
        new_blocks=ints([77, 0, 0]),
        tokens=tokens,
    )
    embedding = torch.randn(28, size, device=device)
    x = how(embedding, inputs)
    assert x.shape == (6, size)
    assert torch.equal(x[:4], embedding[[20, 1, 2, 3]])
    before[2, 3] = 77
    assert torch.equal(tables[:, :NO_COLUMN], before[:, :NO_COLUMN])
