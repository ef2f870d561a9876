"""One batch under way: rows that start together and leave together.

All prompts are computed first, in steps as large as the engine takes, then every row that is not
at its end decodes. A row that has ended keeps its slot and its blocks until the last one has.

With padding the batch computes what a rectangle of tokens would. What a prompt lacks to the
longest is a prompt of pad tokens in a slot of its own, computed beside it and never drawn from;
a row that has ended decodes on, and what it draws is dropped. The tokens of the rows are thus
what they would be alone. Less is paid than by a server that pads: the padding of a prompt is not
attended to when its row decodes.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass

from engine.contract import DecodeRows, NewSequence, SamplingParams, SequenceSlice, StepPlan
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from scheduler.sequence import Sequence, Status

_PAD_TOKEN_ID = 0


@dataclass(frozen=True, slots=True)
class BatchStep:
    """Keep a plan with the rows that draw a token in it, by slot, and the padding it computes."""

    plan: StepPlan
    sampling: dict[int, Sequence]
    num_padding_tokens: int


class Batch:
    """Run `rows` to their ends; they fit the engine together, see `former.Room`."""

    def __init__(self, rows: list[Sequence], pool: BlockPool, *, pads: bool) -> None:
        self.rows = rows
        self._pool = pool
        self._pads = pads
        self._num_longest_output = max(row.limit - row.num_prompt_tokens for row in rows)
        self._failed: set[Sequence] = set()
        self._tables = [row.table for row in rows]
        self._num_slots = len(rows)
        self._slots: list[int] = []
        self._prefills: deque[_Prefill] = deque()
        longest = max(row.num_prompt_tokens for row in rows)
        for slot, row in enumerate(rows):
            self._prefills.append(self._start(row, slot))
            if pads and row.num_prompt_tokens < longest:
                self._prefills.append(self._pad(row, longest - row.num_prompt_tokens))

    @property
    def is_over(self) -> bool:
        return all(row.status is Status.FINISHED for row in self.rows)

    def fail(self, row: Sequence) -> None:
        """Compute nothing more for a row that the engine gave up on."""
        self._failed.add(row)

    def next_step(self, step_id: int, released: list[int], budget: int) -> BatchStep | None:
        """Plan up to `budget` tokens; None where what is in flight must come back first."""
        if self._prefills:
            return self._prefill(step_id, released, budget)
        return self._decode(step_id, released)

    def end(self) -> list[int]:
        """Give all blocks back; returns the slots that the engine has to release."""
        for table in self._tables:
            table.free()
        return self._slots

    def _start(self, row: Sequence, slot: int) -> _Prefill:
        row.slot, row.status, row.was_admitted = slot, Status.RUNNING, True
        num_tokens = row.limit
        if self._pads:
            num_tokens = row.num_prompt_tokens + self._num_longest_output
        block_ids = row.table.allocate(num_tokens)
        assert block_ids is not None, "a batch is formed where all its rows fit"
        request = row.request
        new = NewSequence(
            slot=slot,
            request_id=request.request_id,
            token_ids=row.token_ids[:],
            num_prompt_tokens=row.num_prompt_tokens,
            num_computed=0,
            block_ids=(),
            params=request.params,
        )
        return _Prefill(new, block_ids, row.num_prompt_tokens, row)

    def _pad(self, row: Sequence, num_tokens: int) -> _Prefill:
        """Make a prompt of which all but the last token is computed, so that none is drawn.

        It goes by the name of the request that it pads, and always after it.
        """
        slot = self._num_slots
        self._num_slots += 1
        table = BlockTable(self._pool, b"", caching=False)
        self._tables.append(table)
        block_ids = table.allocate(num_tokens)
        assert block_ids is not None, "a batch is formed where all its rows fit"
        new = NewSequence(
            slot=slot,
            request_id=row.request.request_id,
            token_ids=array("i", [_PAD_TOKEN_ID]) * (num_tokens + 1),
            num_prompt_tokens=num_tokens + 1,
            num_computed=0,
            block_ids=(),
            params=SamplingParams(max_tokens=1),
        )
        return _Prefill(new, block_ids, num_tokens, None)

    def _prefill(self, step_id: int, released: list[int], budget: int) -> BatchStep:
        admitted: list[NewSequence] = []
        slices: list[SequenceSlice] = []
        sampling: dict[int, Sequence] = {}
        num_padding_tokens = 0
        while self._prefills and budget:
            prefill = self._prefills[0]
            if not prefill.num_computed:
                admitted.append(prefill.new)
                self._slots.append(prefill.new.slot)
            n_tokens = min(budget, prefill.num_tokens - prefill.num_computed)
            budget -= n_tokens
            piece = prefill.cut(n_tokens)
            slices.append(piece)
            if prefill.row is None:
                num_padding_tokens += n_tokens
            elif piece.sample:
                prefill.row.num_computed = prefill.num_tokens
                prefill.row.num_tokens += 1
                sampling[piece.slot] = prefill.row
            if prefill.num_computed == prefill.num_tokens:
                self._prefills.popleft()
        plan = StepPlan(step_id, slices=slices, admitted=admitted, released=released)
        return BatchStep(plan, sampling, num_padding_tokens)

    def _decode(self, step_id: int, released: list[int]) -> BatchStep | None:
        unfinished = [
            row
            for row in self.rows
            if row.status is not Status.FINISHED and row.num_tokens < row.limit
        ]
        if not unfinished:
            return None
        rows = unfinished
        if self._pads:
            rows = [row for row in self.rows if row not in self._failed]
        decodes = DecodeRows()
        for row in rows:
            decodes.append(row.slot, row.num_tokens - 1)
            row.num_computed = row.num_tokens
            row.num_tokens += 1
        plan = StepPlan(step_id, decodes=decodes, released=released)
        return BatchStep(plan, {row.slot: row for row in rows}, len(rows) - len(unfinished))


@dataclass(slots=True)
class _Prefill:
    """Compute `num_tokens` of a new sequence; `row` is None where they are padding."""

    new: NewSequence
    block_ids: list[int]
    num_tokens: int
    row: Sequence | None
    num_computed: int = 0

    def cut(self, n_tokens: int) -> SequenceSlice:
        """Take the next tokens; all blocks come with the first."""
        start = self.num_computed
        self.num_computed += n_tokens
        return SequenceSlice(
            self.new.slot,
            start,
            n_tokens,
            () if start else self.block_ids,
            self.row is not None and self.num_computed == self.num_tokens,
        )
