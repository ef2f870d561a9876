"""One step at one size: the model, then the draw, over buffers that stay where they are.

On a GPU a program is captured as two CUDA graphs, because between them comes what only some steps
need: biases, penalties, log-probabilities. All graphs share one pool of memory, which is safe as no
two run at once. A program without graphs does the same, launch by launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.gpu.bucket import Bucket
from engine.gpu.fused_decoder import FusedDecoder
from engine.gpu.layout import StepArrays, arrays_of
from engine.gpu.sampling_columns import SamplingColumns
from engine.gpu.slot_table import SlotTable
from engine.kernels.operations import Operations, StepInputs


@dataclass(frozen=True, slots=True)
class Parts:
    """Hold what all programs of an engine share.

    `words`: where steps are uploaded to. `logits`: where programs leave theirs, as one buffer for
    each would take gigabytes; [max_num_seqs, vocab_size], in the model's dtype.
    """

    decoder: FusedDecoder
    operations: Operations
    table: SlotTable
    columns: SamplingColumns
    words: Tensor
    logits: Tensor


class Program:
    """Run steps of one size; `logits` and `drawn` hold what the last one made.

    `logits`: [num_rows, vocab_size], with those of `extra_logit_rows` behind them. `drawn`: int32,
    [num_rows].
    """

    logits: Tensor
    drawn: Tensor

    def __init__(self, parts: Parts, bucket: Bucket) -> None:
        self.bucket = bucket
        self._parts = parts
        self.arrays: StepArrays[Tensor] = arrays_of(parts.words, bucket)
        arrays = self.arrays
        self._inputs = StepInputs(
            slots=arrays.slots,
            query_starts=arrays.query_starts,
            context_lens=arrays.context_lens,
            token_rows=arrays.token_rows,
            positions=arrays.positions,
            tiles=arrays.tiles if bucket.num_tiles else None,
            piece_rows=arrays.piece_rows,
            piece_starts=arrays.piece_starts,
            block_tables=parts.table.blocks,
            block_columns=arrays.block_columns,
            new_blocks=arrays.new_blocks,
            tokens=parts.table.tokens,
        )
        self._logits = parts.logits[: bucket.num_rows]
        self._graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None

    def run_model(self, extra_logit_rows: Tensor | None = None) -> None:
        """Compute `logits`; with rows beyond those that draw, the graph is left aside."""
        if self._graphs is not None and extra_logit_rows is None:
            self.logits = self._logits
            self._graphs[0].replay()
        else:
            self._model(extra_logit_rows)

    def run_draw(self) -> None:
        """Draw from `logits`, and store what was drawn."""
        if self._graphs is not None:
            self._graphs[1].replay()
            self.drawn = self._drawn_by_graph
        else:
            self.draw_from(self._logits)

    @torch.inference_mode()
    def draw_from(self, logits: Tensor) -> None:
        """Draw from logits, the program's own or edited ones, and store what was drawn."""
        arrays, parts = self.arrays, self._parts
        self.drawn = parts.operations.draw(
            logits,
            parts.columns.draw,
            arrays.draw_slots,
            arrays.draw_positions,
            parts.table.tokens,
        )

    def capture(self, pool: Any) -> None:
        """Record both graphs. The buffers must hold a step that only pads."""
        assert self._graphs is None, "a program is captured once"
        # What is compiled or chosen at a first call must not be so while a graph is recorded.
        for _ in range(2):
            self._model(None)
            self.draw_from(self._logits)
        torch.cuda.synchronize()
        graphs = (torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph())
        # What other threads do on the device, for another model, is none of a capture's business.
        mode = "thread_local"
        with torch.cuda.graph(graphs[0], pool=pool, capture_error_mode=mode):
            self._model(None)
        with torch.cuda.graph(graphs[1], pool=pool, capture_error_mode=mode):
            self.draw_from(self._logits)
        self._graphs = graphs
        self._drawn_by_graph = self.drawn

    @torch.inference_mode()
    def _model(self, extra_logit_rows: Tensor | None) -> None:
        rows, out = self.arrays.logit_rows, self._logits
        if extra_logit_rows is not None:
            rows = torch.cat((rows, extra_logit_rows))
            out = out.new_empty(len(rows), out.shape[1])
        self.logits = self._parts.decoder.forward(self._inputs, rows, out)
        if extra_logit_rows is not None:
            # Where the draw looks for them.
            self._logits.copy_(out[: len(self._logits)])
