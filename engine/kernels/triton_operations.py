"""All operations of a step in Triton: the GPU's path."""

from __future__ import annotations

from torch import Tensor

from engine.kernels.attention import attend
from engine.kernels.begin_step import begin_step
from engine.kernels.draw import draw
from engine.kernels.edit_logits import count, penalise
from engine.kernels.operations import DrawColumns, PenaltyColumns, StepInputs
from engine.kernels.rms_norm import add_rms_norm
from engine.kernels.rotary_write import rotate_and_write
from engine.kernels.silu_mul import silu_mul


class TritonOperations:
    """Implement `Operations` with kernels; each is compiled when it is first called."""

    def begin_step(self, embedding: Tensor, inputs: StepInputs) -> Tensor:
        return begin_step(embedding, inputs)

    def add_rms_norm(
        self,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        eps: float,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, residual, weight, eps, rows)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul(gate_up)

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
        return rotate_and_write(
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
        return attend(q, k_cache, v_cache, inputs, block_size=block_size, window=window)

    def draw(
        self,
        logits: Tensor,
        columns: DrawColumns,
        slots: Tensor,
        positions: Tensor,
        tokens: Tensor,
    ) -> Tensor:
        return draw(logits, columns, slots, positions, tokens)

    def penalise(self, logits: Tensor, columns: PenaltyColumns, slots: Tensor) -> None:
        penalise(logits, columns, slots)

    def count(self, columns: PenaltyColumns, slots: Tensor, token_ids: Tensor) -> None:
        count(columns, slots, token_ids)
