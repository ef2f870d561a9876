"""What a scheduler holds and has done, as data for whoever operates it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest

from engine.kv.block_pool import BlockPool
from scheduler.admission import Admission
from scheduler.config import SchedulerConfig
from scheduler.learn import StepModel
from scheduler.lifecycle import Lifecycle
from scheduler.order import FairTree, Node
from scheduler.request import Band


@dataclass(frozen=True, slots=True)
class Load:
    """Say how full a scheduler is; 1 is all of it. Batch work, which makes room, is left out.

    `kv` blocks in use and `queue` places taken; what waits in the default band and above, and in
    flex besides, over the time that a request without a promise may wait for its first token.
    """

    kv: float
    queue: float
    default_wait: float
    flex_wait: float


@dataclass(frozen=True, slots=True)
class Room:
    """Say what there is for batch work to fill: slots, and what others have and want of them.

    Others are all bands but those of batch work, `num_batch` counts what of that is here. `kv` is
    the share of the blocks in use.
    """

    num_slots: int
    num_online_running: int
    num_online_waiting: int
    num_batch: int
    kv: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Count what the scheduler holds now, and what it has done since it was made.

    `free_blocks` includes those of the `cached_blocks` that no running request uses. A request's
    prompt is counted when the request ends, its output tokens as they come. `num_wasted_tokens`
    were computed again after a preemption. A step holds at most `max_step_tokens` and
    `max_step_rows`, which steps that found no memory have lowered `num_shrinks` times.
    """

    queued: int
    running: int
    free_blocks: int
    total_blocks: int
    cached_blocks: int
    num_steps: int
    num_rejected: int
    num_expired: int
    num_finished: int
    num_preemptions: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_wasted_tokens: int
    max_step_tokens: int
    max_step_rows: int
    num_shrinks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantState:
    """Describe a tenant within a band; `organisation_id` is empty where it belongs to none.

    `queued_tokens` is what its waiting requests have to compute before they draw; `service` is
    what it was charged, in weighted tokens; `counter` is its policy's. `entitled` is the part of
    its band's service that it has a right to, by weight, beside all who have work there now.
    """

    tenant_id: str
    organisation_id: str = ""
    weight: float
    counter: float
    queued: int
    queued_tokens: int
    running: int
    service: float
    entitled: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BandState:
    """Describe a band and the tenants that it knows, or the busiest; the most queued first."""

    band: Band
    queued: int
    queued_tokens: int
    running: int
    service: float
    tenants: tuple[TenantState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """Describe a scheduler.

    `slack_s` is how long until the first of all next tokens is due, None where none is promised.
    `step_costs_us` is what was learned of small steps, in microseconds: of any step, and of each
    prompt token, row and token of a row's context in it. `step_margin` is the factor that
    predictions of step times are stretched by. `backlog_s` is how long it takes to begin all that
    waits. `rejections` are counted by reason.
    """

    config: SchedulerConfig
    counts: Snapshot
    bands: tuple[BandState, ...]
    slack_s: float | None
    step_margin: float
    step_costs_us: Mapping[str, float]
    step_model_calibrated: bool
    backlog_s: float
    rejections: Mapping[str, int]


def describe_load(
    config: SchedulerConfig, pool: BlockPool, lifecycle: Lifecycle, admission: Admission
) -> Load:
    """Say how full a scheduler is."""
    patience_s = config.fairness.best_effort_ttft_s
    bands = lifecycle.waiting.bands.values()
    # Those that are held for another's prompt, or paused without a slot, are in no queue.
    num_queued = sum(
        node.num_live - lifecycle.running.num_of(node.band)
        for node in bands
        if node.band < Band.DUE
    )
    num_used = pool.num_blocks - pool.num_free - _num_batch_blocks(pool, lifecycle)
    return Load(
        kv=max(0, num_used) / pool.num_blocks,
        queue=num_queued / config.admission.max_num_queued,
        default_wait=admission.backlog_s(Band.DEFAULT) / patience_s,
        flex_wait=admission.backlog_s(Band.FLEX) / patience_s,
    )


def _num_batch_blocks(pool: BlockPool, lifecycle: Lifecycle) -> int:
    """Count the blocks of batch work, those that it shares as often as it does."""
    return sum(
        -(-sequence.num_computed // pool.block_size)
        for sequence in lifecycle.running
        if sequence.request.band >= Band.DUE
    )


def describe_room(num_slots: int, pool: BlockPool, lifecycle: Lifecycle) -> Room:
    """Say what there is for batch work to fill."""
    running = waiting = num_batch = 0
    for node in lifecycle.waiting.bands.values():
        if node.band >= Band.DUE:
            num_batch += node.num_live
        else:
            running += node.num_live - node.num_waiting
            waiting += node.num_waiting
    return Room(num_slots, running, waiting, num_batch, 1.0 - pool.num_free / pool.num_blocks)


def describe(
    config: SchedulerConfig,
    counts: Snapshot,
    lifecycle: Lifecycle,
    admission: Admission,
    step_model: StepModel,
    now: float,
    *,
    max_tenants: int | None = None,
) -> SchedulerState:
    """Describe a scheduler at `now`, of each band so many tenants, those with the most requests."""
    bands = sorted(lifecycle.waiting.bands.values(), key=lambda node: node.band)
    slack_s = lifecycle.running.pace.tightest_s - now
    return SchedulerState(
        config=config,
        counts=counts,
        bands=tuple(_describe_band(lifecycle.waiting, node, max_tenants) for node in bands),
        # JSON does not know infinity.
        slack_s=slack_s if math.isfinite(slack_s) else None,
        step_margin=step_model.margin,
        step_costs_us=_step_costs_us(step_model),
        step_model_calibrated=step_model.is_calibrated,
        backlog_s=admission.backlog_s(),
        rejections=dict(admission.rejections),
    )


def _step_costs_us(step_model: StepModel) -> dict[str, float]:
    line = step_model.as_cost("learned").small
    costs_s = {
        "step": line.intercept_s,
        "prompt_token": line.per_prefill_token_s,
        "row": line.per_decode_token_s,
        "context_token": line.per_decode_context_token_s,
    }
    return {name: round(1e6 * cost_s, 3) for name, cost_s in costs_s.items()}


def _describe_band(tree: FairTree, node: Node, max_tenants: int | None) -> BandState:
    tenants = list(tree.tenants(node))
    if max_tenants is not None:
        tenants = nlargest(max_tenants, tenants, key=lambda child: child.num_live)
    tenants.sort(key=lambda child: (-child.waiting_tokens, child.name))
    shares = _Shares(tree, node)
    return BandState(
        band=node.band,
        queued=node.num_waiting,
        queued_tokens=node.waiting_tokens,
        running=node.num_live - node.num_waiting,
        service=node.served,
        tenants=tuple(_describe_tenant(tenant, shares.of(tenant)) for tenant in tenants),
    )


class _Shares:
    """Say what part of a band a tenant is entitled to beside the others with work in it."""

    def __init__(self, tree: FairTree, band: Node) -> None:
        self._weight = sum(member.weight for member in tree.below(band) if member.num_live)
        # Once for each: an organisation may have thousands of tenants.
        self._weights: dict[str, float] = {}

    def of(self, tenant: Node) -> float:
        if not tenant.num_live:
            return 0.0
        member = tenant.member
        entitled = member.weight / self._weight
        if member is tenant:
            return entitled
        if member.name not in self._weights:
            live = (child.weight for child in member.children.values() if child.num_live)
            self._weights[member.name] = sum(live)
        return entitled * tenant.weight / self._weights[member.name]


def _describe_tenant(tenant: Node, entitled: float) -> TenantState:
    member = tenant.member
    return TenantState(
        tenant_id=tenant.name,
        organisation_id="" if member is tenant else member.name,
        weight=tenant.weight,
        counter=tenant.counter,
        queued=tenant.num_waiting,
        queued_tokens=tenant.waiting_tokens,
        running=tenant.num_live - tenant.num_waiting,
        service=tenant.served,
        entitled=entitled,
    )
