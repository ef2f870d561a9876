"""Which program a step runs as: the smallest that it fits, or one of its own size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import torch

from engine.contract import EngineInfo
from engine.gpu.bucket import Bucket, decode_buckets, mixed_buckets
from engine.gpu.layout import num_words
from engine.gpu.program import Parts, Program
from engine.kernels.choose import OVERLAPPING_TOKENS, can_run_kernels
from engine.kernels.decode_pieces import most_pieces
from engine.kernels.operations import PREFILL_QUERIES


class Programs:
    """Hold the programs of all sizes; without `graphs` every step runs at its own size.

    Args: `few_parts`: what steps of up to `OVERLAPPING_TOKENS` are made of, other launches over the
        same buffers.
    The twins of the kernels read from the host, so without Triton nothing is captured.
    """

    def __init__(self, parts: Parts, few_parts: Parts, info: EngineInfo, *, graphs: bool) -> None:
        self._parts = parts
        self._few_parts = few_parts
        self._captured: list[list[Program]] = [[], []]
        wave = parts.table.wave
        if graphs:
            buckets = (
                decode_buckets(info.max_num_seqs, wave),
                mixed_buckets(info.max_num_seqs, info.max_num_batched_tokens, wave),
            )
            self._captured = [[self._make(bucket) for bucket in each] for each in buckets]

    @staticmethod
    def num_words(info: EngineInfo, wave: int) -> int:
        """Count the words of the largest step, whose decodes are read in pieces of a `wave`."""
        tokens = max(info.max_num_batched_tokens, info.max_num_seqs)
        tiles = tokens // PREFILL_QUERIES + info.max_num_seqs
        pieces = most_pieces(info.max_num_seqs, wave)
        return num_words(Bucket(tokens, info.max_num_seqs, tiles, pieces))

    def capture(self, fill_padding: Callable[[Program], None]) -> None:
        """Record the graphs, the largest first, so that the smaller ones fit into its memory."""
        if not can_run_kernels(self._parts.words.device):
            return
        pool = torch.cuda.graph_pool_handle()
        for program in reversed([program for each in self._captured for program in each]):
            fill_padding(program)
            program.capture(pool)

    def choose(self, size: Bucket) -> Program:
        """Return the program of a step."""
        programs = self._captured[size.num_tiles > 0]
        at = bisect_left(programs, size, key=lambda program: program.bucket)
        for program in programs[at:]:
            if program.bucket.holds(size):
                return program
        return self._make(size)

    def _make(self, size: Bucket) -> Program:
        few = size.num_tokens <= OVERLAPPING_TOKENS
        return Program(self._few_parts if few else self._parts, size)
