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

A step that fails takes its rows with it: which of them broke it is not known, and a request that
breaks steps must not be tried again beside others. Everything else is queued again with all that
it has drawn, since the engine has then forgotten all KV. Where a step merely found no memory, its
rows are queued again too, and steps are smaller from then on (`scheduler.step_limits`). A row
that the engine names as failed ends alone, and nothing that it computed is found again.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import asdict, dataclass

from engine.contract import EngineInfo, StepPlan, StepResult, TokenLogprobs
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from scheduler.accounts import Accounts
from scheduler.admission import Admission
from scheduler.composer import Composer, Parts, Step
from scheduler.config import PRESETS, SchedulerConfig
from scheduler.deferral import Deferral
from scheduler.estimates import Estimates
from scheduler.expiry import Expiry
from scheduler.fair_tree import FairTree
from scheduler.kv_budget import KvBudget
from scheduler.landing import Landing
from scheduler.length_model import LengthModel, Lengths
from scheduler.preemption import Preemption
from scheduler.request import Admit, Band, FinishReason, Reject, RejectCode, Request, RequestOutput
from scheduler.running import RunningSet
from scheduler.sequence import Sequence, Status
from scheduler.state import Load, SchedulerState, Snapshot, describe_bands, finite
from scheduler.step_budget import StepBudget
from scheduler.step_limits import StepLimits
from scheduler.step_model import StepModel

_MIXED = PRESETS["mixed"]


class Scheduler:
    """Decide what an engine of the limits `info` computes next; see the module.

    `step_model` and `lengths` go on learning; by default they know nothing at first.
    """

    def __init__(
        self,
        info: EngineInfo,
        config: SchedulerConfig = _MIXED,
        *,
        step_model: StepModel | None = None,
        lengths: Lengths | None = None,
    ) -> None:
        assert info.depth in (1, 2), "the rules of the module hold for two steps in flight"
        self.info = info
        self.max_sequence_len = min(info.max_model_len, info.num_blocks * info.block_size)
        self.step_model = StepModel() if step_model is None else step_model
        self.lengths = LengthModel() if lengths is None else lengths
        self._pool = BlockPool(info.num_blocks, info.block_size)
        self._limits = StepLimits(info)
        self._running = RunningSet(self._limits.max_num_rows)
        self._deferral = Deferral(info.block_size)
        self._sequences: dict[str, Sequence] = {}
        self._in_flight: deque[Step] = deque()
        self._num_offered = 0
        self._counts = _Counts()
        # Spreads the times at which those that are refused come back.
        self._jitter = random.Random(0)
        self._expired: list[RequestOutput] = []
        self._expiry = Expiry()
        self._waiting = FairTree(config.fairness)
        self._accounts = Accounts(config.fairness, self._waiting)
        self._landing = Landing(
            info,
            self._running,
            self._accounts,
            end=self._end,
            published=self._release_followers,
        )
        self._apply(config, None)

    def configure(self, config: SchedulerConfig, now: float) -> None:
        """Go by another configuration from the next step on.

        What runs goes on. What waits is put in the new order; tenants and keys keep what they
        were charged where the policy of their level stays the same, and start level otherwise.
        Sequences that were taken in keep the prefix cache, or do without it, as they began.
        """
        if config.fairness != self.config.fairness:
            waiting = sorted(self._waiting, key=lambda sequence: sequence.ordinal)
            tree = FairTree(config.fairness)
            for sequence in self._sequences.values():
                tree.enrol(sequence, now)
            # After that, since a weight may have been edited since a request came with its own.
            tree.carry_over(self._waiting)
            self._waiting = tree
            self._apply(config, self._admission)
            for sequence in waiting:
                self._push(sequence, now)
        else:
            self._apply(config, self._admission)

    def set_weight(self, tenant_id: str, weight: float) -> None:
        """Change a tenant's share from now on, that of its waiting requests included."""
        self._waiting.set_weight(tenant_id, weight)

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
        refusal = self._refuse_too_long(request)
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
        self._estimates.update(sequence)
        refusal = self._admission.refuse(sequence, now)
        if refusal is not None:
            self._counts.num_rejected += 1
            return refusal
        self._num_offered += 1
        num_ahead = self._num_waiting
        self._sequences[request.request_id] = sequence
        self._waiting.enrol(sequence, now)
        self._waiting.push(sequence, now)
        self._expiry.add(sequence)
        return Admit(num_ahead)

    def plan(self, now: float) -> StepPlan | None:
        """Compose the next step, or None where there is nothing to compute yet.

        Requests that are found to have expired end with `EXPIRED`; `take_expired` has them.
        """
        assert len(self._in_flight) < self.info.depth, "report comes first"
        for sequence in self._expiry.take(now):
            # Long before its turn: who waits for it should know as soon as it is too late.
            self._drop_expired(sequence, now)
        step = self._composer.compose(self._counts.num_steps, now)
        if step is None:
            return None
        self._counts.num_steps += 1
        self._counts.num_preemptions += len(step.plan.preempted)
        self._in_flight.append(step)
        return step.plan

    def take_expired(self) -> list[RequestOutput]:
        """Return the last outputs of requests that `plan` has dropped since the last call."""
        expired, self._expired = self._expired, []
        return expired

    def report(self, result: StepResult, now: float) -> list[RequestOutput]:
        """Take the result of the oldest step in flight; returns what its rows have new."""
        step = self._in_flight.popleft()
        assert step.plan.step_id == result.step_id, "steps are reported in plan order"
        outputs = self._landing.take(step, result, now)
        self.step_model.observe(step.features, result.step_s)
        self._admission.note_step(step.features, result.step_s, now)
        return outputs

    def fail_step(self, step_id: int, reason: str, now: float) -> list[RequestOutput]:
        """End the rows of a step that raised, and queue everyone else again.

        All steps in flight are lost and the engine is reset by the caller, before the next plan.
        Returns: the last output of each row of that step.
        """
        step = self._find_in_flight(step_id)
        failed = [
            sequence
            for sequence in (*step.decodes, *step.slices)
            if sequence.status is not Status.FINISHED
        ]
        return self._lose_steps(failed, reason, now)

    def take_back(self, step_id: int, now: float) -> bool:
        """Queue everyone again after a step that found no memory, and plan smaller ones.

        As with `fail_step`, all steps in flight are lost and the engine is reset by the caller.
        Returns: False where there is no smaller one: `fail_step` is what is left to do.
        """
        step = self._find_in_flight(step_id)
        num_rows = len(step.decodes) + len(step.slices)
        if not self._limits.shrink(step.plan.num_tokens, num_rows, decodes=not step.slices):
            return False
        self._lose_steps([], "", now)
        return True

    def _find_in_flight(self, step_id: int) -> Step:
        found = [step for step in self._in_flight if step.plan.step_id == step_id]
        assert found, "only a step in flight fails"
        return found[0]

    def _lose_steps(self, failed: list[Sequence], reason: str, now: float) -> list[RequestOutput]:
        """Forget what the engine has, end some rows and queue everyone else again."""
        lost = list(self._in_flight)
        self._in_flight.clear()
        self._pool.reset()
        self._running.max_num_rows = self._limits.max_num_rows
        evicted = self._running.clear()
        for sequence in evicted:
            sequence.table.forget()
            sequence.lose_kv()
            self._deferral.leave(sequence)
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
        sequence.end_at_grant()
        if sequence.num_known < sequence.limit:
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

    @property
    def _num_waiting(self) -> int:
        return len(self._waiting) + self._deferral.num_held

    def snapshot(self) -> Snapshot:
        """Count what is held and what was done."""
        counts, pool = self._counts, self._pool
        return Snapshot(
            queued=len(self._sequences) - len(self._running),
            running=len(self._running),
            free_blocks=pool.num_free,
            total_blocks=pool.num_blocks,
            cached_blocks=pool.num_cached,
            num_output_tokens=self._landing.num_output_tokens,
            num_wasted_tokens=self._accounts.num_wasted_tokens,
            max_step_tokens=self._limits.max_num_tokens,
            max_step_rows=self._limits.max_num_rows,
            num_shrinks=self._limits.num_shrinks,
            **asdict(counts),
        )

    def load(self) -> Load:
        """Say how full this is, in a few microseconds."""
        pool, config = self._pool, self.config
        patience_s = config.fairness.best_effort_ttft_s
        num_queued = len(self._sequences) - len(self._running)
        return Load(
            kv=1.0 - pool.num_free / pool.num_blocks,
            queue=num_queued / config.admission.max_num_queued,
            default_wait=self._admission.backlog_s(Band.DEFAULT) / patience_s,
            flex_wait=self._admission.backlog_s(Band.FLEX) / patience_s,
        )

    def state(self, now: float) -> SchedulerState:
        """Describe everything that an operator may ask for."""
        return SchedulerState(
            config=self.config,
            counts=self.snapshot(),
            bands=describe_bands(self._waiting),
            slack_s=finite(self._running.pace.tightest_s - now),
            step_margin=self.step_model.margin,
            step_model_calibrated=self.step_model.is_calibrated,
            backlog_s=self._admission.backlog_s(),
            rejections=dict(self._admission.rejections),
        )

    def _refuse_too_long(self, request: Request) -> Reject | None:
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
        return None

    def _queue(self, sequence: Sequence, now: float) -> None:
        """Let a sequence wait for a slot; a paused one would only stand in the way."""
        if not (sequence.is_paused or sequence.is_held) and sequence not in self._waiting:
            self._push(sequence, now)

    def _push(self, sequence: Sequence, now: float) -> None:
        self._estimates.update(sequence)
        self._waiting.push(sequence, now)

    def _drop_expired(self, sequence: Sequence, now: float) -> bool:
        """End a request whose time passed while it waited; returns whether it was one."""
        if not self._admission.is_expired(sequence, now):
            return False
        self._counts.num_expired += 1
        self._expired.append(self._end(sequence, FinishReason.EXPIRED, now))
        return True

    def _apply(self, config: SchedulerConfig, admission: Admission | None) -> None:
        """Make the parts that go by the configuration; `admission` is the one before."""
        self.config = config
        running = self._running
        self._accounts.go_by(config.fairness, self._waiting)
        running.decode_rows.renumber()
        self._estimates = Estimates(config, self.info, self.step_model, self.lengths)
        parts = Parts(
            pool=self._pool,
            waiting=self._waiting,
            running=running,
            deferral=self._deferral,
            accounts=self._accounts,
            preemption=Preemption(
                config.preemption, self._pool, running, self._waiting.tenant_counter
            ),
            step_budget=StepBudget(config.composer, running.pace, self.step_model),
            kv_budget=KvBudget(config.composer, self.info, self._pool, running, self.lengths),
            limits=self._limits,
            requeue=self._requeue,
            drop_expired=self._drop_expired,
        )
        self._admission = Admission(
            config.admission,
            self.info,
            self._waiting,
            running,
            self.step_model,
            jitter=self._jitter,
            lengths=self.lengths,
            before=admission,
        )
        self._composer = Composer(config.composer, self.info, parts)

    def _requeue(self, sequence: Sequence, now: float) -> None:
        """Let a victim wait again, and those who waited for what it was computing."""
        for follower in (*self._deferral.leave(sequence), sequence):
            self._queue(follower, now)

    def _release_followers(self, sequence: Sequence, now: float) -> None:
        """Let those wait for a slot again who waited for blocks that are there now."""
        for follower in self._deferral.release(sequence, sequence.table.num_published):
            self._queue(follower, now)

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
            self._running.release(sequence, suspect=finish_reason is FinishReason.ERROR)
        elif sequence in self._waiting:
            self._waiting.remove(sequence, now)
        self._accounts.end(sequence, now)
        self._waiting.expel(sequence)
        sequence.status = Status.FINISHED
        del self._sequences[sequence.request.request_id]
        for follower in self._deferral.leave(sequence):
            self._queue(follower, now)
        if finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            self.lengths.observe(
                sequence.request.tenant_id, sequence.num_prompt_tokens, sequence.num_output_tokens
            )
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
    num_expired: int = 0
    num_finished: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
