"""The begin of a step in plain torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from engine.kernels.operations import StepInputs


def begin_step(embedding: Tensor, inputs: StepInputs) -> Tensor:
    """Store blocks and embed tokens; see `Operations.begin_step`."""
    inputs.block_tables[inputs.slots, inputs.block_columns] = inputs.new_blocks
    # A token that pads has row -1, which is the last: its slot is anybody's, its token unread.
    token_ids = inputs.tokens[inputs.slots[inputs.token_rows], inputs.positions]
    return F.embedding(token_ids, embedding)
