"""What decides who runs in the next batch, and what it has to keep within."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from engine.contract import EngineInfo
from scheduler.sequence import Sequence


class Room:
    """Count what a batch takes of an engine: a row each, and blocks for all that it may draw.

    Whatever a row may come to is reserved when the batch is formed, so nothing is ever preempted.
    With `pads` each row is as long as the longest prompt and the longest output together.
    """

    def __init__(self, info: EngineInfo, *, pads: bool) -> None:
        # What a padded row lacks to the longest prompt is computed in a slot of its own.
        max_num_rows = max(1, info.max_num_seqs // 2) if pads else info.max_num_seqs
        self._max_num_rows = min(max_num_rows, info.max_num_batched_tokens)
        self._max_len = min(info.max_model_len, info.num_blocks * info.block_size)
        self._info = info
        self._pads = pads
        self._num_rows = 0
        self._num_blocks = 0
        self._num_prompt_tokens = 0
        self._num_output_tokens = 0

    def take(self, sequence: Sequence) -> bool:
        """Make room for one more row, or return False and leave everything as it is."""
        num_rows = self._num_rows + 1
        num_blocks = self._num_blocks + self._blocks_of(sequence.limit)
        prompt = max(self._num_prompt_tokens, sequence.num_prompt_tokens)
        output = max(self._num_output_tokens, sequence.limit - sequence.num_prompt_tokens)
        if self._pads and num_rows > 1:
            # The padding's own last block may be as empty as the row's.
            num_blocks = num_rows * (self._blocks_of(prompt + output) + 1)
            if prompt + output > self._max_len:
                return False
        if num_rows > self._max_num_rows or num_blocks > self._info.num_blocks:
            return False
        self._num_rows, self._num_blocks = num_rows, num_blocks
        self._num_prompt_tokens, self._num_output_tokens = prompt, output
        return True

    def take_first(self, sequences: Iterable[Sequence], num_rows: int) -> list[Sequence]:
        """Take up to `num_rows`, in order, until the first that does not fit."""
        taken: list[Sequence] = []
        for sequence in sequences:
            if len(taken) == num_rows or not self.take(sequence):
                break
            taken.append(sequence)
        return taken

    def _blocks_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self._info.block_size)


class Former(Protocol):
    """Choose the rows of a batch from those that wait, which are in the order of their offers."""

    def form(
        self, waiting: Collection[Sequence], open_room: Callable[[], Room], now: float
    ) -> list[Sequence]:
        """Return the next batch, or nothing where none is due yet; called while none runs."""
        ...

    def due_s(self, waiting: Collection[Sequence]) -> float | None:
        """Say when a batch is due though nobody else comes; None where nobody waits."""
        ...


def oldest_due_s(waiting: Collection[Sequence], timeout_s: float) -> float | None:
    """Say when the oldest of those that wait has waited for `timeout_s`."""
    oldest = next(iter(waiting), None)
    return None if oldest is None else oldest.request.arrival_s + timeout_s
