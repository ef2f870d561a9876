"""What every schedule must hold to, as functions that assert it of one run.

Each takes what tenants send, the machine and how a scheduler is made, so that the tests can run
them on the scheduler and on mutants of it, which must be found out.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from engine.contract import StepPlan
from scheduler.core import Scheduler
from scheduler.order.tree_node import Level, Node
from tenant_world import (
    INPUT_PRICE,
    OUTPUT_PRICE,
    Burst,
    Machine,
    MakeScheduler,
    World,
    largest_unit,
    nodes,
    spans,
    total_work,
)


def interval_service_is_bounded(
    bursts: list[Burst],
    machine: Machine,
    make_scheduler: MakeScheduler = Scheduler,
    *,
    above: Level = Level.BAND,
    allowance: float = 0.0,
) -> None:
    """Siblings that wait at the same time are served alike, for their weights, within 2 U.

    Over each interval in which both wait throughout; `allowance` is added to U for orders that
    lend or deal out quanta.
    """
    world = World(bursts, machine, make_scheduler)
    bound = 2.0 * (largest_unit(bursts, machine) + allowance)
    for pair, drifts in spans(world, above).items():
        assert max(drifts) <= bound + 1e-6, (pair[0].name, pair[1].name, max(drifts), bound)


def work_is_conserved(
    bursts: list[Burst], machine: Machine, make_scheduler: MakeScheduler = Scheduler
) -> None:
    """No step is empty, or leaves a slot and tokens unused, while the next request fits."""
    world = World(bursts, machine, make_scheduler)
    info = world.engine.info

    def watch(world: World, plan: StepPlan | None) -> None:
        head = world.tree.peek(world.now)
        if plan is None:
            is_idle = not world.scheduler._in_flight
            assert not (is_idle and head is not None), "nothing runs though somebody waits"
            return
        if head is None or head.num_in_flight or plan.preempted:
            return
        if plan.num_tokens == info.max_num_batched_tokens or world.scheduler._running.is_full:
            return
        assert world.scheduler._composer._kv_budget.fit(head) is None, "it would have fitted"

    world.after_plan.append(watch)
    world.run()


def everyone_finishes(
    bursts: list[Burst], machine: Machine, make_scheduler: MakeScheduler = Scheduler
) -> None:
    """Each request ends, within a few times the steps that all work would take one by one."""
    world = World(bursts, machine, make_scheduler).run()
    for log in world.logs.values():
        assert log.finished_s is not None
        if log.burst.cancel_after_s is None:
            assert log.num_output == log.burst.output_len
    first_s = min(burst.at_s for burst in bursts)
    last_s = max(burst.at_s + burst.count * burst.gap_s for burst in bursts)
    assert world.now <= last_s + 3 * total_work(bursts) + first_s


def accounts_add_up(
    bursts: list[Burst], machine: Machine, make_scheduler: MakeScheduler = Scheduler
) -> None:
    """What was charged, refunds taken off, is what was served, at every level.

    A prompt token is served when it was computed for the first time, an output token when it
    landed; what was cached is free by default.
    """
    world = World(bursts, machine, make_scheduler)
    num_ran: Counter[str] = Counter()
    request_of_slot: dict[int, str] = {}

    def watch(world: World, plan: StepPlan | None) -> None:
        if plan is None:
            return
        for new in plan.admitted:
            request_of_slot[new.slot] = new.request_id
            # A resumed request may find in the cache what others have computed.
            num_ran[new.request_id] = max(num_ran[new.request_id], new.num_computed)
        for chunk in plan.slices:
            request_id = request_of_slot[chunk.slot]
            num_ran[request_id] = max(num_ran[request_id], chunk.start + chunk.n_tokens)

    world.after_plan.append(watch)
    world.run()
    owed: dict[tuple[str, ...], float] = defaultdict(float)
    for request_id, log in world.logs.items():
        burst = log.burst
        num_served = min(num_ran[request_id], burst.prompt_len) - log.num_cached
        cost = INPUT_PRICE * max(0, num_served) + OUTPUT_PRICE * log.num_output
        tenant, key = burst.tenant, f"{burst.tenant}-{burst.key}"
        organisation = (f"organisation {burst.organisation}",) if burst.organisation else ()
        full_path = (burst.band.name, *organisation, tenant, key)
        for depth in range(len(full_path) + 1):
            owed[full_path[:depth]] += cost
    for path, node in _nodes(world):
        assert abs(node.served - owed[path]) < 1e-6, (path, node.served, owed[path])
        assert (node.num_live, node.num_waiting, node.waiting_tokens) == (0, 0, 0), path


def waste_is_named(
    bursts: list[Burst], machine: Machine, make_scheduler: MakeScheduler = Scheduler
) -> None:
    """All that the engine computed is some request's, once, or in the ledger of waste.

    Holds exactly where requests share no prefixes, none is cancelled and no step runs ahead.
    """
    world = World(bursts, machine, make_scheduler).run()
    num_computed = sum(plan.num_tokens for plan in world.plans)
    num_useful = sum(
        log.burst.prompt_len + log.num_output - 1 - log.num_cached for log in world.logs.values()
    )
    assert num_computed == num_useful + world.scheduler._lifecycle.charges.num_wasted_tokens


def coming_back_erases_nothing(
    bursts: list[Burst], machine: Machine, make_scheduler: MakeScheduler = Scheduler
) -> None:
    """Counters never fall where nothing is refunded, and nobody waits with less than was due.

    What was due is the least counter of those that waited throughout: time spent idle is no
    credit, and leaving and coming back is no pardon.
    """
    world = World(bursts, machine, make_scheduler)
    known: dict[Node, tuple[float, bool]] = {}

    def watch(world: World, plan: StepPlan | None) -> None:
        for _, node in _nodes(world):
            if node.level <= Level.BAND:
                continue
            counter, _ = known.get(node, (0.0, False))
            assert node.counter >= counter, "a counter fell"
        for _, node in _nodes(world):
            if node.level not in (Level.BAND, Level.ORGANISATION, Level.TENANT):
                continue
            stayed = [
                known[child][0]
                for child in world.tree.below(node)
                if child.num_waiting and known.get(child, (0.0, False))[1]
            ]
            for child in world.tree.below(node):
                if child.num_waiting and stayed:
                    assert child.counter >= min(stayed), "idle time was credit"
        known.update({n: (n.counter, bool(n.num_waiting)) for _, n in _nodes(world)})

    world.after_plan.append(watch)
    world.run()


def nothing_is_leaked(
    bursts: list[Burst], machine: Machine, make_scheduler: MakeScheduler = Scheduler
) -> None:
    """All blocks and slots are free in the end; the engine has refereed each plan."""
    world = World(bursts, machine, make_scheduler).run()
    snapshot = world.scheduler.snapshot()
    assert snapshot.free_blocks == snapshot.total_blocks
    assert (snapshot.running, snapshot.queued) == (0, 0)


def order_of(
    bursts: list[Burst], machine: Machine, make_scheduler: MakeScheduler = Scheduler
) -> list[str]:
    """List the requests in the order in which they were first admitted."""
    return World(bursts, machine, make_scheduler).run().order


def _nodes(world: World) -> list[tuple[tuple[str, ...], Node]]:
    """List all nodes with the names above them."""
    found: dict[Node, tuple[str, ...]] = {}
    for node in nodes(world.tree):
        name = node.name
        if node.level is Level.ORGANISATION:
            name = f"organisation {name}"
        if node.level is Level.BAND:
            found[node.above] = ()
        found[node] = (*found[node.above], name)
    return [(path, node) for node, path in found.items()]
