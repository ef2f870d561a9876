"""Watches a run from outside and fills in its records.

Tokens are counted as the scheduler charges them: a prompt when its request is first given a slot,
less what the cache held, and each output token as it lands. Where service is time, it is what each
plan gives whom (`scheduler.simulator.time_service`).
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.contract import StepPlan
from scheduler.request import Admit, Reject, RequestOutput
from scheduler.simulator.records import Record, Run
from scheduler.simulator.time_service import TimeService
from scheduler.simulator.workload import Arrival


class Recorder:
    """Be told of all that happens, in the order of time."""

    def __init__(self, run: Run, time_service: TimeService | None = None) -> None:
        self._run = run
        self._prices = run.prices
        self._time_service = time_service
        self._live: dict[str, Record] = {}
        self._tenants: dict[str, int] = {}

    @property
    def num_live(self) -> int:
        return len(self._live)

    def note_offer(
        self, request_id: str, arrival: Arrival, answer: Admit | Reject, *, is_backlog: bool
    ) -> None:
        record = Record(arrival, self._tenant(arrival), is_backlog=is_backlog)
        self._run.records.append(record)
        if isinstance(answer, Reject):
            record.reject, record.retry_after_s = answer.code, answer.retry_after_s
            record.refused_for = answer.cause
            return
        self._live[request_id] = record
        self._queue(record, 1, arrival.at_s)

    def note_plan(self, plan: StepPlan, now: float) -> None:
        run = self._run
        for request_id in plan.preempted:
            # Its last token may have landed since.
            victim = self._live.get(request_id)
            if victim is not None:
                victim.num_preemptions += 1
                self._queue(victim, 1, now)
        for sequence in plan.admitted:
            record = self._live[sequence.request_id]
            # What pads a row of a batch goes by the name of its request.
            if record.is_queued:
                self._queue(record, -1, now)
            if record.admitted_s == record.admitted_s:
                continue
            record.admitted_s = now
            record.num_cached_tokens = sequence.num_computed
            if self._time_service is None:
                cost = self._prices.input * (sequence.num_prompt_tokens - sequence.num_computed)
                cost += self._prices.cached_input * sequence.num_computed
                run.service.add(now, record.tenant, cost)
        if self._time_service is not None:
            self._note_time(self._time_service, plan, now)
        run.num_steps += 1
        run.num_rows += len(plan.decodes) + len(plan.slices)
        run.num_prefill_tokens += sum(chunk.n_tokens for chunk in plan.slices)

    def note_outputs(self, outputs: Iterable[RequestOutput], now: float) -> list[Record]:
        """Take what a step has drawn; runs once a row and step. Returns the requests that ended."""
        live, num_drawn = self._live, dict[int, int]()
        ended: list[Record] = []
        for request_id, _, finish_reason, _, num_output_tokens, *_ in outputs:
            record = live[request_id]
            num_new = num_output_tokens - record.num_output_tokens
            if num_new:
                num_drawn[record.tenant] = num_drawn.get(record.tenant, 0) + num_new
                if record.num_output_tokens:
                    gap_s = now - record.last_s
                    if gap_s > record.max_gap_s:
                        record.max_gap_s = gap_s
                    if now > record.due_s:
                        record.num_late += 1
                    record.due_s += record.arrival.slo.tpot_s or 0.0
                else:
                    _begin(record, now)
                record.last_s = now
                record.num_output_tokens = num_output_tokens
            if finish_reason is not None:
                record.finish_reason = finish_reason
                record.finished_s = now
                ended.append(record)
                self._end(request_id, record, now)
        if self._time_service is not None:
            return ended
        for tenant, num_tokens in num_drawn.items():
            self._run.service.add(now, tenant, self._prices.output * num_tokens)
        return ended

    def _note_time(self, service: TimeService, plan: StepPlan, now: float) -> None:
        of_tenant: dict[int, float] = {}
        for request_id, cost in service.price(plan).items():
            # One that has ended may be in a step that was planned before.
            record = self._live.get(request_id)
            if record is not None:
                of_tenant[record.tenant] = of_tenant.get(record.tenant, 0.0) + cost
        for tenant, cost in of_tenant.items():
            self._run.service.add(now, tenant, cost)
        self._run.output_cost = service.output

    def _end(self, request_id: str, record: Record, now: float) -> None:
        del self._live[request_id]
        if record.is_queued:
            self._queue(record, -1, now)

    def _queue(self, record: Record, change: int, now: float) -> None:
        record.is_queued = change > 0
        self._run.queue.add(now, record.tenant, change)

    def _tenant(self, arrival: Arrival) -> int:
        tenant = self._tenants.get(arrival.tenant_id)
        if tenant is None:
            tenant = self._tenants[arrival.tenant_id] = len(self._tenants)
            self._run.tenant_ids.append(arrival.tenant_id)
            self._run.weights.append(arrival.weight)
            self._run.organisation_ids.append(arrival.organisation_id)
        return tenant


def _begin(record: Record, now: float) -> None:
    """Note the first token, and when the next one is due.

    Worked out apart from the scheduler's own deadlines, which it judges.
    """
    slo = record.arrival.slo
    record.first_s = now
    if slo.tpot_s is not None:
        first_due_s = record.arrival.at_s + (slo.ttft_s or 0.0)
        # A hair of room: sums of step times are not exact.
        record.due_s = max(now, first_due_s) + slo.tpot_s + 1e-9
