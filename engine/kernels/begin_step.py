"""Begin a step: store the blocks that decodes bring, and look up what the newest tokens embed to.

A program takes a token, and the row of the same number its block. Which token it is only the device
knows: the step before may have drawn it. One launch, where plain indexing takes eight.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.dependent_launch import admit_successor, lets_overlap
from engine.kernels.operations import StepInputs


def begin_step(embedding: Tensor, inputs: StepInputs, *, dependent: bool = False) -> Tensor:
    """Store blocks and embed tokens; see `Operations.begin_step`."""
    num_tokens, num_rows = len(inputs.positions), len(inputs.slots)
    assert num_rows <= num_tokens, "no row is without a token"
    size = embedding.shape[1]
    x = embedding.new_empty(num_tokens, size)
    block = triton.next_power_of_2(size)
    _begin_step_kernel[(num_tokens,)](
        embedding,
        inputs.tokens,
        inputs.block_tables,
        inputs.slots,
        inputs.block_columns,
        inputs.new_blocks,
        inputs.token_rows,
        inputs.positions,
        x,
        num_rows,
        embedding.stride(0),
        inputs.tokens.stride(0),
        inputs.block_tables.stride(0),
        SIZE=size,
        BLOCK=block,
        # Eight elements a thread: 16 bytes of bfloat16.
        num_warps=min(max(block // 256, 1), 16),
        # Launched plainly: behind the upload that all of the step reads.
        DEPENDENT=lets_overlap(dependent),
    )
    return x


@triton.jit(do_not_specialize=["num_rows"])
def _begin_step_kernel(
    embedding: tl.tensor,
    tokens: tl.tensor,
    block_tables: tl.tensor,
    slots: tl.tensor,
    block_columns: tl.tensor,
    new_blocks: tl.tensor,
    token_rows: tl.tensor,
    positions: tl.tensor,
    x: tl.tensor,
    num_rows: tl.tensor,
    embedding_stride: tl.tensor,
    tokens_stride: tl.tensor,
    table_stride: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    admit_successor(DEPENDENT)
    number = tl.program_id(0)
    if number < num_rows:
        table = block_tables + tl.load(slots + number).to(tl.int64) * table_stride
        tl.store(table + tl.load(block_columns + number), tl.load(new_blocks + number))
    row = tl.load(token_rows + number)
    if row < 0:
        return
    slot = tl.load(slots + row).to(tl.int64)
    token_id = tl.load(tokens + slot * tokens_stride + tl.load(positions + number)).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    values = tl.load(embedding + token_id * embedding_stride + columns, mask=inside)
    tl.store(x + number.to(tl.int64) * SIZE + columns, values, mask=inside)
