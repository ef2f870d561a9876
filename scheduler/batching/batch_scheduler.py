"""A scheduler that runs one batch at a time, from its first prompt to its last token.

It has the outward shape of `scheduler.core.Scheduler`, so whoever drives that one drives this.
Pure: no thread, no clock (`now` is an argument, in seconds), no I/O. With two steps in flight a
row is planned as if the step before had not ended it; if it did, what is drawn for it is dropped.

What it leaves out: grants, scored prompts, prompt groups (each computes its own), the prefix
cache. A fault of a step is a fault of all: `reset`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import partial

from engine.contract import EngineInfo, StepPlan, StepResult, TokenLogprobs
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from scheduler.batching.batch import Batch, BatchStep
from scheduler.batching.former import Former, Room
from scheduler.request import Admit, FinishReason, Reject, RejectCode, Request, RequestOutput
from scheduler.sequence import Sequence, Status

_QUEUE_FULL_RETRY_S = 1.0


@dataclass(slots=True)
class BatchingSnapshot:
    """Count what is held now and what was done since the start.

    `running` are the rows of the batch that have not ended, `idle_rows` those that have.
    `num_padding_tokens` were computed for nobody.
    """

    queued: int = 0
    running: int = 0
    idle_rows: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    num_steps: int = 0
    num_batches: int = 0
    num_rejected: int = 0
    num_finished: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_padding_tokens: int = 0


class BatchScheduler:
    """Run the batches that `former` forms on an engine of the limits `info`; see the module.

    With `pads` each row is padded to the longest; see `scheduler.batching.batch`.
    """

    def __init__(
        self, info: EngineInfo, former: Former, *, pads: bool = False, max_num_queued: int = 10_000
    ) -> None:
        self.info = info
        self.max_sequence_len = min(info.max_model_len, info.num_blocks * info.block_size)
        self._former = former
        self._pads = pads
        self._max_num_queued = max_num_queued
        self._pool = BlockPool(info.num_blocks, info.block_size)
        self._sequences: dict[str, Sequence] = {}
        self._waiting: dict[Sequence, None] = {}
        self._batch: Batch | None = None
        self._released: list[int] = []
        self._in_flight: deque[BatchStep] = deque()
        self._num_offered = 0
        self._counts = BatchingSnapshot(total_blocks=info.num_blocks)

    @property
    def due_s(self) -> float | None:
        """Say when the next batch is due though nobody else comes; None where it depends."""
        return None if self._batch is not None else self._former.due_s(self._waiting)

    def offer(self, request: Request, now: float) -> Admit | Reject:
        """Take a request in, or say why not; it ends where the KV pool does, if that is first."""
        assert request.request_id not in self._sequences, "request ids are unique"
        assert request.prompt_token_ids, "a prompt has at least one token"
        assert request.granted_tokens is None, "grants are not among what a batch can do"
        assert request.params.prompt_logprobs is None, "nor are scored prompts"
        refusal = self._refuse(request)
        if refusal is not None:
            self._counts.num_rejected += 1
            return refusal
        sequence = Sequence(
            request,
            BlockTable(self._pool, request.cache_salt, caching=False),
            ordinal=self._num_offered,
            max_len=self.max_sequence_len,
            info=self.info,
        )
        self._num_offered += 1
        num_ahead = len(self._waiting)
        self._sequences[request.request_id] = sequence
        self._waiting[sequence] = None
        return Admit(num_ahead)

    def plan(self, now: float) -> StepPlan | None:
        """Plan the batch's next step, or begin a batch if one is due; None is nothing to do."""
        assert len(self._in_flight) < self.info.depth, "report comes first"
        if self._batch is None:
            self._begin(now)
        if self._batch is None:
            return None
        step = self._batch.next_step(
            self._counts.num_steps, self._released, self.info.max_num_batched_tokens
        )
        if step is None:
            return None
        self._released = []
        self._counts.num_steps += 1
        self._counts.num_padding_tokens += step.num_padding_tokens
        self._in_flight.append(step)
        return step.plan

    def report(self, result: StepResult, now: float) -> list[RequestOutput]:
        """Take the result of the oldest step in flight; returns what its rows have new."""
        step = self._in_flight.popleft()
        assert step.plan.step_id == result.step_id, "steps are reported in plan order"
        outputs: list[RequestOutput] = []
        for slot, reason in result.failed.items():
            row = step.sampling[slot]
            if row.status is not Status.FINISHED:
                assert self._batch is not None, "a row that is not at its end is in the batch"
                self._batch.fail(row)
                outputs.append(self._end(row, FinishReason.ERROR, error=reason))
        logprobs = result.logprobs or [None] * len(result.slots)
        for slot, token_id, scored in zip(result.slots, result.token_ids, logprobs, strict=True):
            row = step.sampling[slot]
            if row.status is not Status.FINISHED:
                outputs.append(self._accept(row, token_id, scored))
        self._end_batch()
        return outputs

    def cancel(self, request_id: str, now: float) -> RequestOutput | None:
        """End a request; one in the batch keeps its place. None where it is not live."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        output = self._end(sequence, FinishReason.CANCELLED)
        self._end_batch()
        return output

    def take_expired(self) -> list[RequestOutput]:
        """Return nothing: a baseline runs whatever it was given."""
        return []

    def reset(self, reason: str, now: float) -> list[RequestOutput]:
        """End every request with an error and forget all KV, as after the engine's own reset."""
        self._in_flight.clear()
        self._released = []
        self._batch = None
        self._pool.reset()
        live = list(self._sequences.values())
        return [self._end(sequence, FinishReason.ERROR, error=reason) for sequence in live]

    def snapshot(self) -> BatchingSnapshot:
        running = len(self._sequences) - len(self._waiting)
        num_rows = 0 if self._batch is None else len(self._batch.rows)
        return replace(
            self._counts,
            queued=len(self._waiting),
            running=running,
            idle_rows=num_rows - running,
            free_blocks=self._pool.num_free,
        )

    def _refuse(self, request: Request) -> Reject | None:
        num_prompt_tokens = len(request.prompt_token_ids)
        num_tokens = num_prompt_tokens + request.params.max_tokens
        if num_tokens > self.info.max_model_len or num_prompt_tokens + 1 > self.max_sequence_len:
            return Reject(
                f"The prompt of {num_prompt_tokens} tokens and max_tokens of "
                f"{request.params.max_tokens} exceed the {self.max_sequence_len} tokens that "
                "this server has room for.",
                RejectCode.CONTEXT_LENGTH_EXCEEDED,
                cause="too_long",
            )
        if len(self._waiting) >= self._max_num_queued:
            return Reject(
                "The queue is full.", RejectCode.OVERLOADED, _QUEUE_FULL_RETRY_S, "queue_requests"
            )
        return None

    def _begin(self, now: float) -> None:
        open_room = partial(Room, self.info, pads=self._pads)
        rows = self._former.form(self._waiting, open_room, now)
        if not rows:
            return
        for row in rows:
            del self._waiting[row]
        self._batch = Batch(rows, self._pool, pads=self._pads)
        self._counts.num_batches += 1
        self._counts.num_prompt_tokens += sum(row.num_prompt_tokens for row in rows)

    def _end_batch(self) -> None:
        """Free everything at once when the last row has ended.

        The engine runs steps in order, so a step that is still in flight has used slots and
        blocks before the next batch does.
        """
        if self._batch is not None and self._batch.is_over:
            self._released += self._batch.end()
            self._batch = None

    def _accept(self, row: Sequence, token_id: int, scored: TokenLogprobs | None) -> RequestOutput:
        row.token_ids.append(token_id)
        self._counts.num_output_tokens += 1
        logprobs = None if scored is None else (scored,)
        if token_id in row.end_token_ids:
            return self._end(row, FinishReason.STOP, logprobs=logprobs)
        if len(row.token_ids) >= row.limit:
            return self._end(row, FinishReason.LENGTH, token_ids=(token_id,), logprobs=logprobs)
        return row.output((token_id,), None, None, logprobs)

    def _end(
        self,
        sequence: Sequence,
        finish_reason: FinishReason,
        *,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] | None = None,
        error: str | None = None,
    ) -> RequestOutput:
        self._waiting.pop(sequence, None)
        sequence.status = Status.FINISHED
        del self._sequences[sequence.request.request_id]
        self._counts.num_finished += 1
        return sequence.output(token_ids, finish_reason, error, logprobs)
