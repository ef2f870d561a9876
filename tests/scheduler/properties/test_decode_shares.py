"""What holds of every schedule in which rows sit out steps, whatever tenants send."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fairness_properties as properties
from decode_contest import COST, Contest, Flood, config_of
from engine.contract import EngineInfo
from scheduler.config import SchedulerConfig
from scheduler.core import Scheduler
from scheduler.learn import StepModel
from scheduler.request import Band, Slo
from scheduler.step.decode_shares import MAX_STEPS_OUT
from tenant_world import Burst, Machine, World, bursts

_SETTINGS = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
_SLOS = (
    Slo(),
    Slo(tpot_s=0.002),
    Slo(tpot_s=0.02),
    Slo(max_gap_s=0.03),
    Slo(tpot_s=0.006, max_gap_s=0.05),
)


def _floods(
    bands: tuple[Band, ...] = (Band.DEFAULT,), grants: tuple[int | None, ...] = (None,)
) -> st.SearchStrategy[list[Flood]]:
    """Draw tenants of all sizes, the promised and the heavy among them."""
    flood = st.builds(
        Flood,
        tenant=st.sampled_from("abc"),
        streams=st.integers(1, 40),
        output=st.integers(3, 60),
        prompt=st.integers(1, 40),
        keys=st.integers(1, 4),
        band=st.sampled_from(bands),
        slo=st.sampled_from(_SLOS),
        grant=st.sampled_from(grants),
    )
    weights = {"a": 1.0, "b": 3.0, "c": 20.0}
    return st.lists(flood, min_size=2, max_size=4).map(
        lambda drawn: [replace(flood, weight=weights[flood.tenant]) for flood in drawn]
    )


_ONLINE = (Band.DEFAULT, Band.PRIORITY, Band.FLEX)


@_SETTINGS
@given(
    floods=_floods(bands=_ONLINE, grants=(None, 4)),
    loss=st.sampled_from([0.1, 0.3, 0.9]),
    depth=st.sampled_from([1, 2]),
    num_blocks=st.sampled_from([120, 4000]),
    cancels=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 100)), max_size=20),
)
def test_no_row_sits_out_for_longer_than_the_bound(
    floods: list[Flood],
    loss: float,
    depth: int,
    num_blocks: int,
    cancels: list[tuple[int, int]],
) -> None:
    """Each row that may draw is in one of so many steps, and something runs while any may.

    Preemptions, pauses, cancellations, bands and weights included; all that end have drawn what
    they asked for, and the engine has refereed each plan.
    """
    contest = Contest(*floods, config=config_of(loss), depth=depth, num_blocks=num_blocks)
    for step in range(150):
        for at, number in cancels:
            if at == step:
                contest.cancel(number)
        contest.turn()
    assert contest.most_steps_out <= MAX_STEPS_OUT


@_SETTINGS
@given(
    floods=_floods(),
    loss=st.sampled_from([0.2, 0.6, 0.9]),
    num_blocks=st.sampled_from([120, 4000]),
)
def test_promises_are_never_traded_for_shares(
    floods: list[Flood], loss: float, num_blocks: int
) -> None:
    """A row that sat out has its next token by the time that it was promised."""
    contest = Contest(*floods, config=config_of(loss), num_blocks=num_blocks)
    contest.run(150)
    assert contest.late_after_rest == 0


def test_prompts_leave_time_for_rows_that_sit_out() -> None:
    """A step with a long prompt ends so early that who sits it out is in time with the next one."""
    flood = Flood(tenant="a", streams=40, output=60, slo=Slo(max_gap_s=0.025))
    config = config_of()
    config = replace(config, composer=replace(config.composer, min_chunk_tokens=8))
    contest = Contest(flood, Flood(tenant="b", streams=3, weight=3.0), config=config).run(100)
    contest.join(Flood(tenant="c", streams=4, prompt=250, output=3))
    contest.run(300)
    assert contest.num_rested > 1000
    assert contest.late_after_rest == 0


def _holding(info: EngineInfo, config: SchedulerConfig) -> Scheduler:
    """Make a scheduler whose rows sit out whenever a tenant is ahead."""
    config = replace(config, fairness=replace(config.fairness, max_throughput_loss=0.9))
    return Scheduler(info, config, step_model=StepModel(COST, margin=1.0))


_MACHINES = st.sampled_from(
    [
        Machine(cost=COST, max_num_seqs=32, budget=40, num_blocks=400),
        Machine(cost=COST, max_num_seqs=32, budget=40, num_blocks=400, depth=2),
        # Rows preempt each other all the time.
        Machine(cost=COST, max_num_seqs=24, budget=40, num_blocks=48),
    ]
)


@_SETTINGS
@given(sent=bursts(weights=(1.0, 3.0, 0.5), max_count=30), machine=_MACHINES)
def test_the_bound_between_queues_holds(sent: list[Burst], machine: Machine) -> None:
    """Tenants that both wait are served alike within 2 U, with rows sitting out."""
    properties.interval_service_is_bounded(sent, machine, _holding)


@_SETTINGS
@given(sent=bursts(keys="kl", cancels=True, max_count=30), machine=_MACHINES)
def test_everyone_finishes(sent: list[Burst], machine: Machine) -> None:
    """All requests end with what they asked for, accounts add up, and nothing is leaked."""
    properties.everyone_finishes(sent, machine, _holding)
    properties.accounts_add_up(sent, machine, _holding)
    properties.nothing_is_leaked(sent, machine, _holding)


def test_rows_do_sit_out_in_these_worlds() -> None:
    """The searches above are of schedules in which rows sit out."""
    sent = [
        Burst(tenant="a", count=3, output_len=8),
        Burst(tenant="b", count=28, output_len=8),
    ]
    machine = Machine(cost=COST, max_num_seqs=32, budget=40, num_blocks=400)
    world = World(sent, machine, _holding).run()
    assert any(0 < len(plan.decodes) < 10 for plan in world.plans[3:6])
