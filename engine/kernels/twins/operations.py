"""All operations of a step in plain torch: the CPU's path, and a GPU's where Triton is not."""

from __future__ import annotations

from torch import Tensor

from engine.kernels.operations import DrawColumns, PenaltyColumns, StepInputs
from engine.kernels.twins import attention, begin_step, draw, edits, norms, rotary_write


class TorchOperations:
    """Implement `Operations` with the twins."""

    def begin_step(self, embedding: Tensor, inputs: StepInputs) -> Tensor:
        return begin_step.begin_step(embedding, inputs)

    def add_rms_norm(
        self,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        eps: float,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        return norms.add_rms_norm(x, residual, weight, eps, rows)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return norms.silu_mul(gate_up)

    def rotate_and_write(
        self,
        qkv: Tensor,
        qk_norm: Tensor | None,
        eps: float,
        cos: Tensor,
        sin: Tensor,
        inputs: StepInputs,
        k_cache: Tensor,
        v_cache: Tensor,
        *,
        block_size: int,
    ) -> Tensor:
        return rotary_write.rotate_and_write(
            qkv, qk_norm, eps, cos, sin, inputs, k_cache, v_cache, block_size=block_size
        )

    def attend(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        inputs: StepInputs,
        *,
        block_size: int,
        window: int | None,
    ) -> Tensor:
        return attention.attend(q, k_cache, v_cache, inputs, block_size=block_size, window=window)

    def draw(
        self,
        logits: Tensor,
        columns: DrawColumns,
        slots: Tensor,
        positions: Tensor,
        tokens: Tensor,
    ) -> Tensor:
        return draw.draw(logits, columns, slots, positions, tokens)

    def penalise(self, logits: Tensor, columns: PenaltyColumns, slots: Tensor) -> None:
        edits.penalise(logits, columns, slots)

    def count(self, columns: PenaltyColumns, slots: Tensor, token_ids: Tensor) -> None:
        edits.count(columns, slots, token_ids)
