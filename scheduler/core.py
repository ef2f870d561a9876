"""The scheduler: takes requests in, plans steps, and turns their results into outputs.

Pure: no thread, no clock (`now` is an argument, in seconds), no I/O. Whoever drives it calls
`plan`, has the engine run the plan and hands the result to `report`, in plan order; up to
`EngineInfo.depth` plans may be out. `offer`, `cancel` and the others may come in between.

With two steps in flight, step N+1 is planned before the tokens of step N are known. Three rules
keep that exact:

- A row is planned as if step N had not ended it. If it did, what N+1 draws for it is dropped.
- A row that is sent back keeps the token that is still in flight, and is not admitted again
  before that token has landed.
- Blocks and slots that step N frees may be planned into N+2 while N+1 still runs: the engine
  runs steps in order, so the old use is over before the new one starts. Content is published to
  the prefix cache only when the step that computed it has come back.

A step that fails takes its rows with it. Everything else is queued again with all that it has
drawn, since the engine has then forgotten all KV.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import repeat

from engine.contract import EngineInfo, StepPlan, StepResult, TokenLogprobs
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from scheduler.accounts import Accounts
from scheduler.composer import Composer, Step
from scheduler.config import PRESETS, SchedulerConfig
from scheduler.estimates import Estimates
from scheduler.fair_tree import FairTree
from scheduler.prompt_groups import PromptGroups
from scheduler.request import Admit, FinishReason, Reject, RejectCode, Request, RequestOutput
from scheduler.running import RunningSet
from scheduler.sequence import Sequence, Status

_QUEUE_FULL_RETRY_S = 1.0
_MIXED = PRESETS["mixed"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Count what the scheduler holds now, and what it has done since it was made.

    `free_blocks` includes those of the `cached_blocks` that no running request uses. A request's
    prompt is counted when the request ends, its output tokens as they come.
    """

    queued: int
    running: int
    free_blocks: int
    total_blocks: int
    cached_blocks: int
    num_steps: int
    num_rejected: int
    num_finished: int
    num_preemptions: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int


class Scheduler:
    """Decide what an engine of the limits `info` computes next; see the module."""

    def __init__(self, info: EngineInfo, config: SchedulerConfig = _MIXED) -> None:
        assert info.depth in (1, 2), "the rules of the module hold for two steps in flight"
        self.info = info
        self.max_sequence_len = min(info.max_model_len, info.num_blocks * info.block_size)
        self.config = config
        self._pool = BlockPool(info.num_blocks, info.block_size)
        self._waiting = FairTree(config.fairness)
        self._accounts = Accounts(config.fairness, self._waiting)
        self._estimates = Estimates(config.fairness)
        # Each row may want a token of the budget, so that decoding rows always go on together.
        self._running = RunningSet(min(info.max_num_seqs, info.max_num_batched_tokens))
        self._composer = Composer(
            info, self._pool, self._waiting, self._running, self._accounts, self._queue
        )
        self._groups = PromptGroups()
        self._sequences: dict[str, Sequence] = {}
        self._in_flight: deque[Step] = deque()
        self._num_offered = 0
        self._counts = _Counts()

    def offer(self, request: Request, now: float) -> Admit | Reject:
        """Take a request in, or say why not; nothing of a refused request is kept.

        A prompt is refused if it and one token can never fit. A request whose `max_tokens` fit
        the model but not the KV pool is taken and ends with `length` where the pool does.
        """
        assert request.request_id not in self._sequences, "request ids are unique"
        assert request.prompt_token_ids, "a prompt has at least one token"
        assert request.params.max_tokens >= 1, "at least one token is asked for"
        assert request.granted_tokens is None or request.granted_tokens >= 1
        assert request.params.prompt_logprobs is None or self.info.max_num_prompt_logprobs
        refusal = self._refuse(request)
        if refusal is not None:
            self._counts.num_rejected += 1
            return refusal
        sequence = Sequence(
            request,
            BlockTable(self._pool, request.cache_salt, caching=self.config.prefix_caching),
            ordinal=self._num_offered,
            max_len=self.max_sequence_len,
            info=self.info,
        )
        self._num_offered += 1
        num_ahead = len(self._waiting) + self._groups.num_held
        self._sequences[request.request_id] = sequence
        self._waiting.enrol(sequence, now)
        if not self._hold(sequence):
            self._push(sequence, now)
        return Admit(num_ahead)

    def plan(self, now: float) -> StepPlan | None:
        """Compose the next step, or None where there is nothing to compute yet."""
        assert len(self._in_flight) < self.info.depth, "report comes first"
        step = self._composer.compose(self._counts.num_steps, now)
        if step is None:
            return None
        self._counts.num_steps += 1
        self._counts.num_preemptions += len(step.plan.preempted)
        self._in_flight.append(step)
        return step.plan

    def report(self, result: StepResult, now: float) -> list[RequestOutput]:
        """Take the result of the oldest step in flight; returns what its rows have new."""
        step = self._in_flight.popleft()
        assert step.plan.step_id == result.step_id, "steps are reported in plan order"
        outputs: list[RequestOutput] = []
        if result.failed:
            outputs += self._end_failed(step, result, now)
            sequence_of_slot = step.sequence_of_slot()
            sampling = [sequence_of_slot[slot] for slot in result.slots]
        else:
            sampling = step.sampling
        self._publish(step, now)
        if result.prompt_logprobs:
            outputs += self._take_prompt_logprobs(step, result)
        self._accounts.take_outputs([s for s in sampling if s.status is not Status.FINISHED], now)
        logprobs = result.logprobs or repeat(None, len(sampling))
        for sequence, token_id, scored in zip(sampling, result.token_ids, logprobs, strict=True):
            if sequence.status is not Status.FINISHED:
                outputs.append(self._accept(sequence, token_id, scored, now))
        return outputs

    def fail_step(self, step_id: int, reason: str, now: float) -> list[RequestOutput]:
        """End the rows of a step that raised, and queue everyone else again.

        All steps in flight are lost and the engine is reset by the caller, before the next plan.
        Returns: the last output of each row of that step.
        """
        lost = list(self._in_flight)
        assert any(step.plan.step_id == step_id for step in lost), "only a step in flight fails"
        self._in_flight.clear()
        failed = [
            sequence
            for step in lost
            if step.plan.step_id == step_id
            for sequence in (*step.decodes, *step.slices)
            if sequence.status is not Status.FINISHED
        ]
        self._pool.reset()
        evicted = self._running.clear()
        for sequence in evicted:
            sequence.table.forget()
            sequence.lose_kv()
        outputs = [
            self._end(sequence, FinishReason.ERROR, now, error=reason) for sequence in failed
        ]
        # A row sent back earlier may have had a token in one of the lost steps.
        for sequence in {s: None for step in lost for s in (*step.decodes, *step.slices)}:
            sequence.lose_in_flight()
        for sequence in self._sequences.values():
            self._queue(sequence, now)
        return outputs

    def cancel(self, request_id: str, now: float) -> RequestOutput | None:
        """End a request and free what it holds; None where it is not live."""
        sequence = self._sequences.get(request_id)
        return None if sequence is None else self._end(sequence, FinishReason.CANCELLED, now)

    def extend(self, request_id: str, granted_tokens: int | None, now: float) -> None:
        """Let a request draw up to `granted_tokens` output tokens in all; a grant never shrinks.

        A request that is no longer live is ignored: its end may cross the answer on the way.
        """
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return
        sequence.grant(granted_tokens)
        if sequence.status is Status.WAITING:
            self._queue(sequence, now)

    def finish_granted(self, request_id: str, now: float) -> RequestOutput | None:
        """Let a request end with `length` where its grant does, which may be now.

        Returns: its last output if it has reached its grant already, else None.
        """
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        sequence.limit = sequence.pause_at
        if len(sequence.token_ids) < sequence.limit:
            return None
        return self._end(sequence, FinishReason.LENGTH, now)

    def reset(self, reason: str, now: float) -> list[RequestOutput]:
        """End every request with an error and forget all KV, as after the engine's own reset."""
        self._in_flight.clear()
        self._pool.reset()
        for sequence in self._running.clear():
            sequence.table.forget()
            sequence.lose_kv()
        live = list(self._sequences.values())
        return [self._end(sequence, FinishReason.ERROR, now, error=reason) for sequence in live]

    def snapshot(self) -> Snapshot:
        counts = self._counts
        return Snapshot(
            queued=len(self._sequences) - len(self._running),
            running=len(self._running),
            free_blocks=self._pool.num_free,
            total_blocks=self._pool.num_blocks,
            cached_blocks=self._pool.num_cached,
            num_steps=counts.num_steps,
            num_rejected=counts.num_rejected,
            num_finished=counts.num_finished,
            num_preemptions=counts.num_preemptions,
            num_prompt_tokens=counts.num_prompt_tokens,
            num_cached_tokens=counts.num_cached_tokens,
            num_output_tokens=counts.num_output_tokens,
        )

    def _refuse(self, request: Request) -> Reject | None:
        num_prompt_tokens = len(request.prompt_token_ids)
        num_tokens = num_prompt_tokens + request.params.max_tokens
        if num_tokens > self.info.max_model_len:
            return Reject(
                f"The prompt of {num_prompt_tokens} tokens and max_tokens of "
                f"{request.params.max_tokens} exceed the context of "
                f"{self.info.max_model_len} tokens.",
                RejectCode.CONTEXT_LENGTH_EXCEEDED,
            )
        if num_prompt_tokens + 1 > self.max_sequence_len:
            return Reject(
                f"The prompt of {num_prompt_tokens} tokens exceeds the "
                f"{self.max_sequence_len - 1} that this server has room for.",
                RejectCode.CONTEXT_LENGTH_EXCEEDED,
            )
        if len(self._waiting) + self._groups.num_held >= self.config.admission.max_num_queued:
            return Reject(
                "The queue is full.", RejectCode.OVERLOADED, retry_after_s=_QUEUE_FULL_RETRY_S
            )
        return None

    def _queue(self, sequence: Sequence, now: float) -> None:
        """Let a sequence wait for a slot; a paused one would only stand in the way."""
        if not (sequence.is_paused or sequence.is_held) and sequence not in self._waiting:
            self._push(sequence, now)

    def _push(self, sequence: Sequence, now: float) -> None:
        self._estimates.update(sequence)
        self._waiting.push(sequence, now)

    def _hold(self, sequence: Sequence) -> bool:
        """Hold a sequence back where another of its group is to compute what they share."""
        shares_blocks = (
            sequence.request.group is not None
            and self.config.prefix_caching
            and sequence.num_prompt_tokens > self.info.block_size
        )
        return shares_blocks and self._groups.join(sequence)

    def _end_failed(self, step: Step, result: StepResult, now: float) -> list[RequestOutput]:
        """End the rows that the engine gave up on; the others of the step are good."""
        sequence_of_slot = step.sequence_of_slot()
        failed = [(sequence_of_slot[slot], reason) for slot, reason in result.failed.items()]
        return [
            self._end(sequence, FinishReason.ERROR, now, error=reason)
            for sequence, reason in failed
            if sequence.status is not Status.FINISHED
        ]

    def _publish(self, step: Step, now: float) -> None:
        """Make the blocks findable that a step which has come back filled."""
        for sequence, chunk in zip(step.slices, step.plan.slices, strict=True):
            if sequence.status is Status.RUNNING:
                sequence.table.publish(sequence.token_ids, chunk.start + chunk.n_tokens)
            if chunk.sample and sequence.request.group is not None:
                for follower in self._groups.release(sequence):
                    self._queue(follower, now)
        block_size = self.info.block_size
        for sequence, position in zip(step.decodes, step.plan.decodes.positions, strict=True):
            if not (position + 1) % block_size and sequence.status is Status.RUNNING:
                sequence.table.publish(sequence.token_ids, position + 1)

    def _take_prompt_logprobs(self, step: Step, result: StepResult) -> list[RequestOutput]:
        """Hand out the prompts that this step has finished scoring."""
        outputs = [
            sequence.take_prompt_logprobs(chunk.start, result.prompt_logprobs[chunk.slot])
            for sequence, chunk in zip(step.slices, step.plan.slices, strict=True)
            if chunk.slot in result.prompt_logprobs and sequence.status is not Status.FINISHED
        ]
        return [output for output in outputs if output is not None]

    def _accept(
        self, sequence: Sequence, token_id: int, scored: TokenLogprobs | None, now: float
    ) -> RequestOutput:
        """Append a token that has landed, and end the sequence if it is its last."""
        sequence.token_ids.append(token_id)
        self._counts.num_output_tokens += 1
        logprobs = None if scored is None else (scored,)
        if token_id in sequence.end_token_ids:
            return self._end(sequence, FinishReason.STOP, now, logprobs=logprobs)
        if len(sequence.token_ids) >= sequence.limit:
            return self._end(
                sequence, FinishReason.LENGTH, now, token_ids=(token_id,), logprobs=logprobs
            )
        return sequence.output((token_id,), None, None, logprobs)

    def _end(
        self,
        sequence: Sequence,
        finish_reason: FinishReason,
        now: float,
        *,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] | None = None,
        error: str | None = None,
    ) -> RequestOutput:
        if sequence.status is Status.RUNNING:
            self._running.release(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence, now)
        self._accounts.end(sequence, now)
        self._waiting.expel(sequence)
        sequence.status = Status.FINISHED
        del self._sequences[sequence.request.request_id]
        if sequence.request.group is not None:
            leader = self._groups.leave(sequence)
            if leader is not None:
                self._queue(leader, now)
        counts = self._counts
        counts.num_finished += 1
        if sequence.was_admitted:
            counts.num_prompt_tokens += sequence.num_prompt_tokens
            counts.num_cached_tokens += sequence.num_cached_tokens
        return sequence.output(token_ids, finish_reason, error, logprobs)


@dataclass(slots=True)
class _Counts:
    num_steps: int = 0
    num_rejected: int = 0
    num_finished: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
