"""The scheduler: takes requests in, plans steps, and turns their results into outputs.

Pure: no thread, no clock (`now` is an argument, in seconds), no I/O. Whoever drives it calls
`plan`, has the engine run the plan and hands the result to `report`, in plan order; up to
`EngineInfo.depth` plans may be out. `offer`, `cancel` and the others may come in between.

What keeps two steps in flight exact, and what becomes of everyone when one fails, is said in
`scheduler.step.in_flight`.

Each part is given what is below it and calls down: the core calls the composer and the results,
and all three the one `Lifecycle`, through which every request goes from state to state.
"""

from __future__ import annotations

import random
from dataclasses import asdict

from engine.contract import EngineInfo, Pooling, StepPlan, StepResult
from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from scheduler.admission import Admission, least_pace_s
from scheduler.config import PRESETS, FairnessConfig, SchedulerConfig
from scheduler.counts import Counts, count
from scheduler.learn import Estimates, LengthModel, Lengths, MachineTime, StepModel
from scheduler.lifecycle import Lifecycle
from scheduler.order import BandShares, Rates, Replicas, Tokens, Unit
from scheduler.outputs import Outputs
from scheduler.request import Admit, Band, FinishReason, Reject, Request, RequestOutput, Sender
from scheduler.running import RunningSet
from scheduler.sequence import Sequence
from scheduler.state import (
    Load,
    Room,
    SchedulerState,
    Snapshot,
    describe,
    describe_load,
    describe_room,
)
from scheduler.step import StepLimits
from scheduler.step.composer import Composer
from scheduler.step.in_flight import InFlight
from scheduler.step.results import Results
from scheduler.watch.step_counts import StepCounts

_MIXED = PRESETS["mixed"]


class Scheduler:
    """Decide what an engine of the limits `info` computes next; see the module.

    `step_model` and `lengths` go on learning; by default they know nothing at first. Unless it is
    `compiled`, Python does all the work, as it does where nothing is built.
    """

    def __init__(
        self,
        info: EngineInfo,
        config: SchedulerConfig = _MIXED,
        *,
        step_model: StepModel | None = None,
        lengths: Lengths | None = None,
        compiled: bool = True,
    ) -> None:
        assert info.depth in (1, 2), "the rules of the module hold for two steps in flight"
        self.info = info
        self.max_sequence_len = min(info.max_model_len, info.num_blocks * info.block_size)
        self.step_model = StepModel() if step_model is None else step_model
        self.lengths = LengthModel() if lengths is None else lengths
        self._pool = BlockPool(info.num_blocks, info.block_size)
        self._limits = StepLimits(info)
        self._running = RunningSet(self._limits.max_num_rows, compiled=compiled)
        self._lifecycle = Lifecycle(config.fairness, self._pool, self._running, self.lengths)
        self._results = Results(info, self._lifecycle)
        self._in_flight = InFlight(self._limits, self._lifecycle)
        self._step_counts = StepCounts()
        self._replicas = Replicas()
        self._busy_s = 0.0
        self._num_offered = self._num_rejected = self._num_steps = self._num_preemptions = 0
        # Spreads the times at which those that are refused come back.
        self._jitter = random.Random(0)
        self._apply(config, None, 0.0)

    def configure(self, config: SchedulerConfig, now: float) -> None:
        """Go by another configuration from the next step on.

        What runs goes on. What waits is put in the new order; tenants and keys keep what they
        were charged where the policy of their level stays the same, and start level otherwise.
        Sequences that were taken in keep the prefix cache, or do without it, as they began.
        """
        waiting: list[Sequence] = []
        if config.fairness != self.config.fairness:
            waiting = self._lifecycle.reorder(config.fairness, now)
        self._apply(config, self._admission, now)
        for sequence in waiting:
            self._lifecycle.queue(sequence, now)

    def _apply(self, config: SchedulerConfig, admission: Admission | None, now: float) -> None:
        """Make the parts that go by the configuration; `admission` is the one before."""
        self.config = config
        lifecycle, step_model = self._lifecycle, self.step_model
        self._estimates = Estimates(config, self.info, step_model, self.lengths)
        self._admission = Admission(
            config.admission,
            self.info,
            lifecycle.waiting,
            self._running,
            step_model,
            jitter=self._jitter,
            lengths=self.lengths,
            before=admission,
        )
        lifecycle.go_by(
            config.fairness, self._unit(config.fairness), self._estimates, self._admission, now
        )
        self._composer = Composer(
            config, self.info, self._pool, self._limits, lifecycle, step_model, self.lengths
        )

    def _unit(self, config: FairnessConfig) -> Unit:
        if config.unit == "time":
            return MachineTime(self.info, self.step_model)
        return Tokens(config.prices)

    @property
    def _is_caching(self) -> bool:
        """Tell whether blocks are shared: of hidden states that were not computed is no mean."""
        return self.config.prefix_caching and self.info.pooling is not Pooling.MEAN

    def set_weight(self, tenant_id: str, weight: float) -> None:
        """Change a tenant's share from now on, that of its waiting requests included."""
        self._lifecycle.waiting.set_weight(tenant_id, weight)
        self._lifecycle.running.holdings.set_weight(tenant_id, weight)
        self._replicas.forget(tenant_id)

    def least_pace_s(self) -> float:
        """Say the shortest time between tokens to promise a tenant; 0 before much is known."""
        if not self.step_model.is_calibrated:
            return 0.0
        return least_pace_s(
            self.step_model,
            max_num_tokens=self._limits.max_num_tokens,
            max_loss=self.config.fairness.max_throughput_loss,
        )

    def set_organisation_weight(self, organisation_id: str, weight: float) -> None:
        """Do the same to an organisation."""
        self._lifecycle.waiting.set_organisation_weight(organisation_id, weight)
        self._lifecycle.running.holdings.set_organisation_weight(organisation_id, weight)
        self._replicas.forget(organisation_id)

    def rates(self, now: float) -> Rates:
        """Say what is served here a second, to be told to other replicas; about once a second."""
        return self._replicas.rates(self._lifecycle.waiting, self._busy_s, now)

    def lean(self, elsewhere: Rates, num_replicas: int, now: float) -> None:
        """Weigh who is served elsewhere by `num_replicas` - 1 others; see `scheduler.order`."""
        tree, holdings = self._lifecycle.waiting, self._lifecycle.running.holdings
        for account, node, ratio in self._replicas.lean(tree, elsewhere, num_replicas, now):
            tree.lean(node, ratio, now)
            if not (account.organisation_id and account.tenant_id):
                is_organisation = bool(account.organisation_id)
                name = account.organisation_id or account.tenant_id
                holdings.lean(account.band, (is_organisation, name), ratio)

    def prepare(self, request: Request) -> Sequence | None:
        """Do what of an offer takes as long as the prompt is; any thread may, without a lock.

        Returns: what `offer` takes with the request; None where it would be refused anyway.
        """
        if len(request.prompt_token_ids) >= self.max_sequence_len:
            return None
        sequence = Sequence(
            request,
            BlockTable(
                self._pool, request.cache_salt, caching=self._is_caching, owner=request.member
            ),
            ordinal=0,
            max_len=self.max_sequence_len,
            info=self.info,
        )
        # Whoever asks again finds what has changed since.
        sequence.table.match(request.prompt_token_ids)
        return sequence

    def offer(
        self, request: Request, now: float, prepared: Sequence | None = None
    ) -> Admit | Reject:
        """Take a request in, or say why not; nothing of a refused request is kept.

        `prepared` is what `prepare` made of it, which is done here where it is None.

        A prompt is refused if it and one token can never fit. A request whose `max_tokens` fit
        the model but not the KV pool is taken and ends with `length` where the pool does.
        """
        assert self._lifecycle.find(request.request_id) is None, "request ids are unique"
        assert request.prompt_token_ids, "a prompt has at least one token"
        assert request.params.max_tokens >= 1, "at least one token is asked for"
        assert request.granted_tokens is None or request.granted_tokens >= 1
        assert request.params.prompt_logprobs is None or self.info.max_num_prompt_logprobs
        refusal = self._admission.refuse_too_long(request)
        if refusal is not None:
            self._num_rejected += 1
            return refusal
        sequence = prepared or self.prepare(request)
        assert sequence is not None, "what is not refused for its length is prepared"
        sequence.request = self._replicas.leaned(request)
        sequence.ordinal = self._num_offered
        self._estimates.update(sequence)
        is_promised = not self._admission.is_beyond_promise(sequence)
        if not is_promised:
            sequence.forgo_ttft()
            self._estimates.update(sequence)
        self._composer.first_tokens.expect(sequence, now)
        refusal = self._admission.refuse(sequence, now)
        if refusal is not None:
            self._num_rejected += 1
            return refusal
        self._num_offered += 1
        num_ahead = self._lifecycle.num_waiting
        self._lifecycle.take_in(sequence, now)
        return Admit(num_ahead, is_promised)

    def plan(self, now: float) -> StepPlan | None:
        """Compose the next step, or None where there is nothing to compute yet.

        Requests that are found to have expired end with `EXPIRED`; `take_expired` has them. Of
        thousands some are left for the next plans.
        """
        assert len(self._in_flight) < self.info.depth, "report comes first"
        self._lifecycle.drop_late(now)
        self._lifecycle.release_followers(now)
        self._lifecycle.promote_due(self._replicas, now)
        if now >= self._lifecycle.shares.ends_s:
            self._lifecycle.shares.roll(now)
        step = self._composer.compose(self._num_steps, now)
        if step is None:
            self._in_flight.rest()
            return None
        self._num_steps += 1
        self._num_preemptions += len(step.plan.preempted)
        self._in_flight.add(step)
        self._running.in_flight_times.plan(self.step_model.price_s(step.features), now)
        return step.plan

    @property
    def expires_s(self) -> float:
        """Say when the next request may expire that waits; infinity where none does."""
        return self._lifecycle.expires_s

    def take_expired(self) -> list[RequestOutput]:
        """Return the last outputs of requests that `plan` has dropped since the last call."""
        return self._lifecycle.take_expired()

    def report(self, result: StepResult, now: float, *, waited_s: float = 0.0) -> Outputs:
        """Take the result of the oldest step in flight; returns what its rows have new.

        `waited_s` is how long another engine had the machine since the step before: what a step
        costs is learned without it, and how long requests wait with it.
        """
        step, own_s = self._in_flight.take(result, now, waited_s)
        took_s = own_s + waited_s
        self._busy_s += own_s
        self._composer.note(step, result)
        outputs = self._results.take(step, result, now)
        num_prefill_tokens = step.features.num_prefill_tokens
        self._running.in_flight_times.report(took_s, now)
        self._running.step_times.note(result.step_id, took_s, num_prefill_tokens, now)
        self._step_counts.note(len(step.slices), num_prefill_tokens, len(step.decodes), own_s)
        self.step_model.observe(step.features, own_s)
        self._lifecycle.windows.note_step(took_s)
        self._admission.note_step(step.features, took_s, now, is_full=step.is_full)
        return outputs

    def fail_step(self, step_id: int, reason: str, now: float) -> list[RequestOutput]:
        """End the rows of a step that raised, and queue everyone else again.

        All steps in flight are lost and the engine is reset by the caller, before the next plan.
        Returns: the last output of each row of that step.
        """
        return self._in_flight.fail(step_id, reason, now)

    def take_back(self, step_id: int, now: float) -> bool:
        """Queue everyone again after a step that found no memory, and plan smaller ones.

        As with `fail_step`, all steps in flight are lost and the engine is reset by the caller.
        Returns: False where there is no smaller one: `fail_step` is what is left to do.
        """
        return self._in_flight.take_back(step_id, now)

    def reset(self, reason: str, now: float) -> list[RequestOutput]:
        """End every request with an error and forget all KV, as after the engine's own reset."""
        self._in_flight.clear()
        self._lifecycle.forget_kv()
        return self._lifecycle.fail(self._lifecycle.live(), reason, now)

    def cancel(self, request_id: str, now: float) -> RequestOutput | None:
        """End a request and free what it holds; None where it is not live."""
        sequence = self._lifecycle.find(request_id)
        if sequence is None:
            return None
        return self._lifecycle.end(sequence, FinishReason.CANCELLED, now)

    def extend(self, request_id: str, granted_tokens: int | None, now: float) -> None:
        """Let a request draw up to `granted_tokens` output tokens in all; a grant never shrinks.

        A request that is no longer live is ignored: its end may cross the answer on the way.
        """
        sequence = self._lifecycle.find(request_id)
        if sequence is not None:
            self._lifecycle.grant(sequence, granted_tokens, now)

    def finish_granted(self, request_id: str, now: float) -> RequestOutput | None:
        """Let a request end with `length` where its grant does, which may be now.

        Returns: its last output if it has reached its grant already, else None.
        """
        sequence = self._lifecycle.find(request_id)
        if sequence is None:
            return None
        self._running.note_pause(sequence)
        sequence.end_at_grant()
        if sequence.num_known < sequence.limit:
            return None
        return self._lifecycle.end(sequence, FinishReason.LENGTH, now)

    def snapshot(self) -> Snapshot:
        """Count what is held and what was done."""
        lifecycle, pool, limits = self._lifecycle, self._pool, self._limits
        return Snapshot(
            queued=lifecycle.num_queued,
            running=len(self._running),
            free_blocks=pool.num_free,
            total_blocks=pool.num_blocks,
            cached_blocks=pool.num_cached,
            num_steps=self._num_steps,
            num_rejected=self._num_rejected,
            num_preemptions=self._num_preemptions,
            num_output_tokens=self._results.num_output_tokens,
            num_wasted_tokens=lifecycle.charges.num_wasted_tokens,
            max_step_tokens=limits.max_num_tokens,
            max_step_rows=limits.max_num_rows,
            num_shrinks=limits.num_shrinks,
            **asdict(lifecycle.ended),
        )

    def counts(self) -> Counts:
        """Count what was done and is held, by cause, band and size; see `scheduler.counts`."""
        return count(
            self._step_counts,
            self._lifecycle,
            self._pool,
            self._admission,
            self.step_model,
            num_output_tokens=self._results.num_output_tokens,
            max_rows=self._limits.max_num_rows,
        )

    def shares(self, now: float) -> tuple[BandShares, ...]:
        """Say how the bands were shared in the last minute that is over."""
        shares = self._lifecycle.shares
        if now >= shares.ends_s:
            shares.roll(now)
        return shares.last

    def load(self) -> Load:
        """Say how full this is, in a few microseconds."""
        return describe_load(self.config, self._pool, self._lifecycle, self._admission)

    def is_light(self, sender: Sender) -> bool:
        """Tell whether a sender has little waiting, whatever others have, as quickly."""
        return self._admission.is_light(sender, self.config.fairness.best_effort_ttft_s)

    def refuse_many(
        self, sender: Sender, num_requests: int, num_prompt_tokens: int
    ) -> Reject | None:
        """Say why requests of a sender would not all be taken in, as quickly; None: they may be.

        They are offered all the same, one by one; this is for not beginning with what would be
        taken back.
        """
        refusal = self._admission.refuse_many(sender, num_requests, num_prompt_tokens)
        self._num_rejected += refusal is not None
        return refusal

    def room(self) -> Room:
        """Say what there is for batch work to fill, as quickly."""
        return describe_room(self._limits.max_num_rows, self._pool, self._lifecycle)

    def has_batch_work_alone(self) -> bool:
        """Tell whether what is here may all have what others leave; any thread may ask."""
        live = [node for node in tuple(self._lifecycle.waiting.bands.values()) if node.num_live]
        return bool(live) and all(node.band >= Band.BATCH for node in live)

    def state(self, now: float, *, max_tenants: int | None = None) -> SchedulerState:
        """Describe everything that an operator may ask for; see `scheduler.state.describe`."""
        return describe(
            self.config,
            self.snapshot(),
            self._lifecycle,
            self._admission,
            self.step_model,
            now,
            max_tenants=max_tenants,
        )
