"""Tenants that compete for a simulated engine in virtual time, and a log of what each was given.

Service is measured from plans and results alone, not from the scheduler's accounts: the part of a
prompt that was not cached counts whole when its request is first admitted, an output token when it
lands. Each step takes one second, or what the machine's cost says. Where service is time it is
measured as well from plans alone, by `scheduler.simulator.time_service`.
"""

from __future__ import annotations

import itertools
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from hypothesis import strategies as st

import fakes
from engine.contract import EngineInfo, SamplingParams, StepPlan
from engine.simulated import SimulatedEngine
from engine.step_cost import LinearCost, StepCost, StepFeatures
from scheduler.config import (
    AdmissionConfig,
    ComposerConfig,
    FairnessConfig,
    FairnessUnit,
    KvReserve,
    SchedulerConfig,
)
from scheduler.core import Scheduler
from scheduler.learn import MachineTime, StepModel
from scheduler.order.fair_tree import FairTree
from scheduler.order.tree_node import Level, Node
from scheduler.request import Admit, Band, Request, RequestOutput, Slo
from scheduler.simulator.time_service import TimeService

INPUT_PRICE, OUTPUT_PRICE = 1.0, 2.0
_LINE = LinearCost(1.0, 0.05, per_decode_token_s=0.2, per_decode_context_token_s=0.01)
# Of a machine on which rows and their contexts cost something.
LINEAR_COST = StepCost("linear", small=_LINE, large=_LINE)

MakeScheduler = Callable[[EngineInfo, SchedulerConfig], Scheduler]


def timed_scheduler(info: EngineInfo, config: SchedulerConfig) -> Scheduler:
    """Make a scheduler that knows what steps of `LINEAR_COST` take."""
    return Scheduler(info, config, step_model=StepModel(LINEAR_COST))


@dataclass(frozen=True, kw_only=True)
class Burst:
    """Send `count` equal requests, one every `gap_s` from `at_s` on.

    The first `num_shared` tokens of each prompt are the tenant's own system prompt. The promised
    time to the first token is `tightening_s` less for each further request. Each is cancelled
    `cancel_after_s` after it came, where that is given.
    """

    tenant: str = "a"
    key: str = "k"
    at_s: int = 0
    count: int = 1
    gap_s: int = 0
    prompt_len: int = 4
    num_shared: int = 0
    output_len: int = 2
    weight: float = 1.0
    band: Band = Band.DEFAULT
    ttft_s: float | None = None
    tightening_s: float = 0.0
    cancel_after_s: int | None = None
    organisation: str = ""
    organisation_weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Describe the engine and how it is scheduled."""

    policy: str = "vtc"
    params: dict[str, dict[str, float]] = field(default_factory=dict)
    max_num_seqs: int = 4
    budget: int = 8
    num_blocks: int = 64
    block_size: int = 4
    depth: int = 1
    caching: bool = True
    kv_reserve: KvReserve = "prompt"
    max_bypasses: int = 0
    borrow_tokens: float = 0.0
    precharge: bool = False
    unit: FairnessUnit = "tokens"
    cost: StepCost = fakes.UNIT_COST
    # Headroom lets others pass, as far as `scheduler.step.passing` says: bounds are wider by that.
    has_headroom: bool = False

    def under(self, policy: str, params: dict[str, dict[str, float]] | None = None) -> Machine:
        return replace(self, policy=policy, params=params or {})

    def lending(self, borrow_tokens: float) -> Machine:
        return replace(self, borrow_tokens=borrow_tokens)

    def precharging(self, precharge: bool) -> Machine:
        return replace(self, precharge=precharge)

    def config(self) -> SchedulerConfig:
        return SchedulerConfig(
            fairness=FairnessConfig(
                policy=self.policy,
                unit=self.unit,
                params=self.params,
                borrow_tokens=self.borrow_tokens,
                precharge_output=self.precharge,
            ),
            composer=ComposerConfig(
                dynamic_chunk=False,
                kv_reserve=self.kv_reserve,
                max_bypasses=self.max_bypasses,
            ),
            admission=AdmissionConfig(predict_ttft=False, drop_expired=False),
            prefix_caching=self.caching,
        )

    def engine(self) -> SimulatedEngine:
        return fakes.make_engine(
            max_model_len=min(64, self.num_blocks * self.block_size),
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.budget,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            depth=self.depth,
            cost=self.cost if self.unit == "tokens" else LINEAR_COST,
        )


@dataclass
class Log:
    """Keep what happened to one request."""

    burst: Burst
    arrival_s: float
    num_cached: int = 0
    num_prompt_ran: int = 0
    num_output: int = 0
    admitted_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None


class World:
    """Run bursts against a scheduler until nothing is left to do."""

    def __init__(
        self, bursts: list[Burst], machine: Machine, make_scheduler: MakeScheduler = Scheduler
    ) -> None:
        self.machine = machine
        self.engine = machine.engine()
        self._time_service: TimeService | None = None
        if machine.unit == "time":
            self._time_service = TimeService(self.engine.info, LINEAR_COST)
        self.scheduler = make_scheduler(self.engine.info, machine.config())
        if not machine.has_headroom:
            self.scheduler._running.holdings.has_shares = False
        self.now = 0.0
        self.logs: dict[str, Log] = {}
        self.plans: list[StepPlan] = []
        self.order: list[str] = []
        # Weighted tokens so far by tenant, by tenant and key, and by ("", organisation).
        self.service: dict[tuple[str, ...], float] = defaultdict(float)
        self.after_plan: list[Callable[[World, StepPlan | None], None]] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._handles: list[object] = []
        for burst in bursts:
            for index in range(burst.count):
                self._schedule(burst, index)
        self._due.sort(key=lambda due: due[:2])

    @property
    def tree(self) -> FairTree:
        """Show who waits: whether a tenant is backlogged cannot be seen from outside."""
        return self.scheduler._lifecycle.waiting

    def run(self, max_steps: int = 20_000) -> World:
        for _ in range(max_steps):
            if not self.turn():
                return self
        raise AssertionError("the scheduler never ran dry")

    def turn(self) -> bool:
        """Do what is due and a step; returns whether there is more to do."""
        while self._due and self._due[0][0] <= self.now:
            self._due.pop(0)[2]()
        plan = self.scheduler.plan(self.now)
        if plan is not None:
            self._note_plan(plan)
            self._handles.append(self.engine.launch(plan))
        for watch in self.after_plan:
            watch(self, plan)
        if self._handles and (plan is None or len(self._handles) == self.engine.info.depth):
            result = self.engine.collect(self._handles.pop(0))
            self.now += result.step_s
            for output in self.scheduler.report(result, self.now):
                self._note_output(output)
            return True
        if plan is None and self._due:
            self.now = self._due[0][0]
            return True
        return plan is not None

    def _schedule(self, burst: Burst, index: int) -> None:
        request_id = f"r{len(self._due)}"
        ttft_s = burst.ttft_s
        if ttft_s is not None:
            ttft_s = max(1.0, ttft_s - index * burst.tightening_s)
        at_s = burst.at_s + index * burst.gap_s
        self._due.append(
            (at_s, len(self._due), lambda: self._offer(burst, request_id, Slo(ttft_s=ttft_s)))
        )
        if burst.cancel_after_s is not None:
            at_s += burst.cancel_after_s
            self._due.append((at_s, len(self._due), lambda: self._cancel(request_id)))

    def _offer(self, burst: Burst, request_id: str, slo: Slo) -> None:
        ordinal = len(self.logs)
        shared = [1 + sum(map(ord, burst.tenant)) % 40] * burst.num_shared
        own = [(ordinal * 7 + place * ordinal) % 50 for place in range(burst.prompt_len)]
        request = Request(
            request_id=request_id,
            tenant_id=burst.tenant,
            key_id=f"{burst.tenant}-{burst.key}",
            prompt_token_ids=array("i", (shared + own)[: burst.prompt_len]),
            params=SamplingParams(max_tokens=burst.output_len, seed=ordinal),
            cache_salt=burst.tenant.encode(),
            arrival_s=self.now,
            weight=burst.weight,
            organisation_id=burst.organisation,
            organisation_weight=burst.organisation_weight,
            band=burst.band,
            slo=slo,
        )
        assert isinstance(self.scheduler.offer(request, self.now), Admit)
        self.logs[request_id] = Log(burst, self.now)

    def _cancel(self, request_id: str) -> None:
        output = self.scheduler.cancel(request_id, self.now)
        if output is not None:
            self.logs[request_id].finished_s = self.now

    def _note_plan(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        if self._time_service is not None:
            for request_id, cost in self._time_service.price(plan).items():
                self._add_service(self.logs[request_id].burst, cost)
        for new in plan.admitted:
            log = self.logs[new.request_id]
            if log.admitted_s is None:
                log.admitted_s = self.now
                log.num_cached = new.num_computed
                self.order.append(new.request_id)
                self._serve(log.burst, INPUT_PRICE * (log.burst.prompt_len - new.num_computed))

    def _note_output(self, output: RequestOutput) -> None:
        log = self.logs[output.request_id]
        num_new = output.num_output_tokens - log.num_output
        log.num_output = output.num_output_tokens
        self._serve(log.burst, OUTPUT_PRICE * num_new)
        if log.first_token_s is None and num_new:
            log.first_token_s = self.now
        if output.finish_reason is not None:
            log.finished_s = self.now

    def _serve(self, burst: Burst, cost: float) -> None:
        if self._time_service is None:
            self._add_service(burst, cost)

    def _add_service(self, burst: Burst, cost: float) -> None:
        self.service[burst.tenant,] += cost
        self.service[burst.tenant, burst.key] += cost
        self.service["", burst.organisation] += cost


def nodes(tree: FairTree) -> list[Node]:
    """List all nodes but the root, those above first."""
    found: list[Node] = list(tree.bands.values())
    for node in found:
        found += tree.below(node)
    return found


def waiting_nodes(tree: FairTree, above: Level) -> list[tuple[Node, ...]]:
    """List what waits right below the nodes of a level, siblings together."""
    parents = [node for node in nodes(tree) if node.level is above]
    return [tuple(child for child in tree.below(node) if child.num_waiting) for node in parents]


def largest_unit(bursts: list[Burst], machine: Machine) -> float:
    """Bound what a tenant or organisation can be given between two of its turns, by its weight.

    The prompt that its turn lets in, and all that its running requests may still draw. Where
    service is time, prompts are given as they are computed: all that run may be owed theirs, and
    what is held of the memory comes to as much as the steps at most.
    """
    if machine.unit == "time":
        unit = MachineTime(machine.engine().info, StepModel(LINEAR_COST))
        prices = unit.step(StepFeatures(num_decode_tokens=1))
        longest = max(burst.prompt_len + burst.output_len for burst in bursts)
        prompt = unit.prompt(longest, 0)
        drawn = max(b.output_len for b in bursts) * (prices.row + prices.context_token * longest)
        return 2 * machine.max_num_seqs * (prompt + drawn) / min(b.weight for b in bursts)
    return max(
        (
            INPUT_PRICE * burst.prompt_len
            + OUTPUT_PRICE * machine.max_num_seqs * max(b.output_len for b in bursts)
        )
        / min(burst.weight, burst.organisation_weight if burst.organisation else burst.weight)
        for burst in bursts
    )


def total_work(bursts: list[Burst]) -> int:
    """Count the tokens that all requests together compute."""
    return sum(burst.count * (burst.prompt_len + burst.output_len) for burst in bursts)


def bursts(
    *,
    tenants: str = "abc",
    keys: str = "k",
    weights: tuple[float, ...] = (1.0,),
    max_count: int = 12,
    shares_prefix: bool = True,
    cancels: bool = False,
    ttfts: tuple[float | None, ...] = (None,),
    prompt_lens: tuple[int, int] = (1, 24),
    output_lens: tuple[int, int] = (1, 8),
    organisations: Mapping[str, tuple[str, float]] = MappingProxyType({}),
) -> st.SearchStrategy[list[Burst]]:
    """Draw tenants that come, flood, leave and come again.

    `organisations` has the organisation of each tenant that belongs to one, and its weight.
    """
    weight_of = {tenant: weights[i % len(weights)] for i, tenant in enumerate(tenants)}
    burst = st.builds(
        Burst,
        tenant=st.sampled_from(tenants),
        key=st.sampled_from(keys),
        at_s=st.integers(0, 60),
        count=st.integers(1, max_count),
        gap_s=st.integers(0, 2),
        prompt_len=st.integers(*prompt_lens),
        num_shared=st.integers(0, 16) if shares_prefix else st.just(0),
        output_len=st.integers(*output_lens),
        ttft_s=st.sampled_from(ttfts),
        tightening_s=st.sampled_from([0.0, 2.0]),
        cancel_after_s=st.none() | st.integers(0, 20) if cancels else st.none(),
    ).map(lambda b: replace(b, weight=weight_of[b.tenant], **_membership(organisations, b.tenant)))
    return st.lists(burst, min_size=2, max_size=6)


def _membership(organisations: Mapping[str, tuple[str, float]], tenant: str) -> dict[str, Any]:
    if tenant not in organisations:
        return {}
    name, weight = organisations[tenant]
    return {"organisation": name, "organisation_weight": weight}


def spans(world: World, above: Level) -> dict[tuple[Node, Node], list[float]]:
    """Measure, for siblings that wait at the same time, how far their service drifts apart.

    Siblings below the nodes of one level. Runs the world. For each pair, the differences between
    the most and the least of `service / weight` of the one less the other, over each time in which
    both waited throughout.
    """
    drifts: dict[tuple[Node, Node], list[float]] = defaultdict(list)
    open_spans: dict[tuple[Node, Node], tuple[float, float]] = {}

    def watch(world: World, plan: StepPlan | None) -> None:
        still_open: dict[tuple[Node, Node], tuple[float, float]] = {}
        for siblings in waiting_nodes(world.tree, above):
            for pair in itertools.combinations(siblings, 2):
                lead = _service(world, pair[0]) - _service(world, pair[1])
                low, high = open_spans.get(pair, (lead, lead))
                still_open[pair] = min(low, lead), max(high, lead)
        for pair, (low, high) in open_spans.items():
            if pair not in still_open:
                drifts[pair].append(high - low)
        open_spans.clear()
        open_spans.update(still_open)

    world.after_plan.append(watch)
    world.run()
    return drifts


def _service(world: World, node: Node) -> float:
    if node.level is Level.ORGANISATION:
        return world.service["", node.name] / node.weight
    if node.level is Level.TENANT:
        return world.service[node.name,] / node.weight
    assert node.parent is not None
    key = node.name.removeprefix(f"{node.parent.name}-")
    return world.service[node.parent.name, key] / node.weight
