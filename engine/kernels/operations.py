"""What a step on a GPU is made of, as its kernels and their torch twins agree on it.

Everything a kernel reads of a step is on the device when it is launched, in buffers of a fixed
size, so that one captured graph serves every ragged batch that fits. A batch has rows (sequences)
and tokens; what pads either computes nothing that anybody reads. Tokens of a row are neighbours.

The twins compute the same in float32 with plain torch operations. They are what the kernels are
tested against, and what the engine's logic runs on where there is no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """Hold what the kernels read of one step; int32, on the device, R rows and T tokens.

    `slots`: each row's place in the tables of the engine, [R]; a row that pads has the last one,
    which belongs to nobody. `query_starts`: where each row's tokens begin, [R + 1]; a row that
    pads has none. `context_lens`: a row's tokens with those of this step, [R]; 0 where it pads.
    `token_rows`: the row of each token, [T]; -1 where it pads. `positions`: the place of each token
    in its sequence, [T]; 0 where it pads. `tiles`: what prefill attention does, a tile each: the
    row and the first of its queries that the tile has, [num_tiles, 2], both -1 where it pads; None
    where every row has one token at most. A tile has `PREFILL_QUERIES` queries. `piece_rows`: what
    decode attention does, the row of each piece, [num_pieces]; -1 where it pads. `piece_starts`:
    where each row's pieces begin among them, [R + 1]; its keys are shared among its pieces. Rows
    with more than one token are in tiles, rows with one in pieces. `block_tables`: block ids by
    slot, [num_slots + 1, max_num_blocks]; beyond a context they may be anything. `new_blocks`: what
    rows store in their tables before all else, in column `block_columns`, both [R]; a row that has
    none stores where nobody reads. `tokens`: token ids by slot, [num_slots + 1, max_model_len + 1].
    """

    slots: Tensor
    query_starts: Tensor
    context_lens: Tensor
    token_rows: Tensor
    positions: Tensor
    tiles: Tensor | None
    piece_rows: Tensor
    piece_starts: Tensor
    block_tables: Tensor
    block_columns: Tensor
    new_blocks: Tensor
    tokens: Tensor


# Queries of one row in a tile of prefill attention.
PREFILL_QUERIES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawColumns:
    """Hold how each slot draws, in `SamplingParams`' meaning; all [num_slots + 1].

    `temperature`, `top_p`, `min_p`: float32. `top_k`: int32. `seeds`: 64 bits as int64.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PenaltyColumns:
    """Hold what penalises each slot.

    `repetition`, `frequency`, `presence`: float32, [num_slots + 1]; 1, 0 and 0 where a slot has
    none. `counts`: how often a slot has generated a token, and 2^14 more where its prompt has it,
    int16, [num_slots + 1, vocab_size]; 0 is never seen.
    """

    repetition: Tensor
    frequency: Tensor
    presence: Tensor
    counts: Tensor


# What a prompt's token adds to its count.
IN_PROMPT = 1 << 14


# Rows that `Operations.matvec` takes at most.
MATVEC_ROWS = 4


class Operations(Protocol):
    """Compute the parts of a step that are not matrix products, and the products of a few rows.

    Modules satisfy it: `triton_operations`, `dependent_operations` and `twins.operations` of
    `engine.kernels`.
    """

    def begin_step(self, embedding: Tensor, inputs: StepInputs) -> Tensor:
        """Store the blocks that rows bring, and look up the embeddings of the step's tokens.

        Args: `embedding`: [vocab_size, hidden_size].
        Returns: [T, hidden_size]; anything for tokens that pad.
        """
        ...

    def add_rms_norm(
        self,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        eps: float,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Add `residual` to `x`, and scale rows to unit root mean square, then by `weight`.

        Args: `x`, `residual`: [T, hidden_size]. `weight`: [hidden_size]. `rows`: which rows to take
            of both, int32, [n]; None is all.
        Returns: what was normed, and the sum, both in x's dtype. Arithmetic is float32.
        """
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Gate the second half by SiLU of the first; [T, 2 * size] → [T, size]."""
        ...

    def matvec(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        norm: Tensor | None = None,
        eps: float = 0.0,
        rows: Tensor | None = None,
        residual: Tensor | None = None,
        gated: bool = False,
        out: Tensor | None = None,
    ) -> Tensor:
        """Multiply up to `MATVEC_ROWS` rows with a weight, and do what stands around it.

        In this order: norm the rows, as `add_rms_norm` does; multiply; add the bias; gate, as
        `silu_mul` does; add the residual stream. All in float32, rounded at the end.

        Args: `x`: [T, in_size]. `weight`: [num_lines, in_size], read fastest where lines lie in
            memory as such. `bias`: [num_lines]. `norm`: [in_size], or None: no norm. `rows`: which
            rows to take of `x`, int32, [n]; None is all. `residual`: [n, num_lines]; none where
            `gated`, which halves the size. `out`: where the result goes, of any stride by row.
        Returns: [n, num_lines], or half of it, in x's dtype.
        """
        ...

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
        """Norm the heads of queries and keys, rotate them, and store keys and values.

        A token at position p of a row with slot s goes to the place
        `block_tables[s, p // block_size] * block_size + p % block_size`; one that pads to none.

        Args: `qkv`: [T, num_heads + 2 * num_kv_heads, head_dim], changed in place. `qk_norm`:
            weights by head, [num_heads + num_kv_heads, head_dim], or None: no norm. `cos`, `sin`:
            as `engine.models.rotary.RotaryTable` has them, [num_positions, head_dim]. `k_cache`,
            `v_cache`: of one layer, [num_places, num_kv_heads, head_dim], in qkv's dtype or
            float8_e4m3fn, to which values are clamped.
        Returns: the queries, [T, num_heads, head_dim], a view of `qkv`.
        """
        ...

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
        """Attend causally over the paged cache, scaled by head_dim ** -0.5.

        Args: `q`: [T, num_heads, head_dim], any strides but the last. `window`: how many of the
            newest tokens a query sees, itself included; None is all.
        Returns: [T, num_heads * head_dim] in q's dtype; anything for tokens that pad. What no
            context names, and what pads, may hold anything, NaN included.
        """
        ...

    def draw(
        self,
        logits: Tensor,
        columns: DrawColumns,
        slots: Tensor,
        positions: Tensor,
        tokens: Tensor,
    ) -> Tensor:
        """Draw one token a row, as `engine.sampling.sampler` does, to the bit where logits agree.

        Args: `logits`: [R, vocab_size], float32 or bfloat16, left as they are. `slots`: int32, [R].
            `positions`: the place of the token to draw, int32, [R]. `tokens`: where it is stored by
            slot and position, 0 where the row fails; int32, [num_slots + 1, max_model_len + 1].
        Returns: int32, [R]; -1 where a logit is NaN or infinite. Minus infinity is no fault where
            `edit_logits` set it: a row fails only if nothing is left.
        """
        ...

    def penalise(self, logits: Tensor, columns: PenaltyColumns, slots: Tensor) -> None:
        """Change float32 logits in place, [R, vocab_size], as `engine.sampling.penalties` says."""
        ...

    def count(self, columns: PenaltyColumns, slots: Tensor, token_ids: Tensor) -> None:
        """Add drawn tokens to the counts; both int32, [R]. A negative id counts nothing."""
        ...
