"""What one tenant can do to another, and a favoured request to one that is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from scheduler.request import Band
from tenant_world import Burst, Machine, World, largest_unit

_SETTINGS = settings(max_examples=25, deadline=None, derandomize=True, database=None)
_MACHINE = Machine(max_num_seqs=4, budget=8, num_blocks=64)


def _worst_ttft_s(sent: list[Burst], machine: Machine, tenant: str) -> float:
    world = World(sent, machine).run()
    waits = [
        log.first_token_s - log.arrival_s
        for log in world.logs.values()
        if log.burst.tenant == tenant and log.first_token_s is not None
    ]
    return max(waits)


@pytest.mark.parametrize("budget", [64, 8])
@settings(_SETTINGS, phases=[Phase.generate])
@given(
    factor=st.sampled_from([1, 3, 10, 30, 100]),
    prompt_len=st.integers(1, 24),
    output_len=st.integers(1, 8),
)
def test_flood_does_not_delay_others(
    budget: int, factor: int, prompt_len: int, output_len: int
) -> None:
    """However much one tenant sends, another at its share waits no longer than its own turn.

    That is: as long as alone, and for the requests that run and one more of the flood.
    """
    machine = Machine(max_num_seqs=4, budget=budget, num_blocks=64)
    steady = Burst(tenant="calm", count=8, gap_s=40, prompt_len=8, output_len=4)
    flood = Burst(
        tenant="flood", count=2 * factor, gap_s=0, prompt_len=prompt_len, output_len=output_len
    )
    alone_s = _worst_ttft_s([steady], machine, "calm")
    num_ahead = machine.max_num_seqs + 1
    # Half the budget at least is for prompts, the other rows decode.
    bound_s = alone_s + output_len + num_ahead * -(-2 * prompt_len // budget) + 1
    assert _worst_ttft_s([flood, steady], machine, "calm") <= bound_s
    if factor == 100 and output_len > 2:
        unfair = machine.under("fcfs")
        assert _worst_ttft_s([flood, steady], unfair, "calm") > bound_s, "the bound is no bound"


@settings(_SETTINGS, max_examples=8)
@given(num_keys=st.integers(2, 50), output_len=st.integers(1, 6))
def test_splitting_into_keys_gains_nothing(num_keys: int, output_len: int) -> None:
    """A tenant with many keys gets what one with a single key gets, while both wait."""
    crowd = [
        Burst(tenant="many", key=f"k{index}", count=4, output_len=output_len)
        for index in range(num_keys)
    ]
    single = Burst(tenant="one", count=4 * num_keys, output_len=output_len)
    world = World([*crowd, single], _MACHINE)
    bound = 2.0 * largest_unit([*crowd, single], _MACHINE)
    leads: list[float] = []

    def watch(world: World, plan: object) -> None:
        if all(node.num_waiting for node in world.tree.bands["DEFAULT"].children.values()):
            leads.append(world.service["many",] - world.service["one",])

    world.after_plan.append(watch)
    world.run()
    assert max(map(abs, leads)) <= bound


@settings(_SETTINGS, max_examples=8)
@given(num_tenants=st.integers(2, 50), output_len=st.integers(1, 6), weight=st.sampled_from([1, 9]))
def test_splitting_into_tenants_gains_nothing(
    num_tenants: int, output_len: int, weight: int
) -> None:
    """An organisation of many tenants gets what one with a single tenant gets, while both wait.

    Whatever weights its tenants have.
    """
    crowd = [
        Burst(tenant=f"t{index}", organisation="many", count=4, weight=float(weight))
        for index in range(num_tenants)
    ]
    crowd = [replace(burst, output_len=output_len) for burst in crowd]
    single = Burst(tenant="one", count=4 * num_tenants, output_len=output_len)
    world = World([*crowd, single], _MACHINE)
    bound = 2.0 * largest_unit([*crowd, single], _MACHINE)
    leads: list[float] = []

    def watch(world: World, plan: object) -> None:
        if all(node.num_waiting for node in world.tree.below(world.tree.bands["DEFAULT"])):
            leads.append(world.service["", "many"] - world.service["one",])

    world.after_plan.append(watch)
    world.run()
    assert max(map(abs, leads)) <= bound


@pytest.mark.parametrize("policy", ["fcfs", "edf", "sjf", "hrrn", "mlfq", "lpm", "vtc", "dlpm"])
def test_unfavoured_request_is_served_in_a_steady_stream(policy: str) -> None:
    """A long, cold request is served while short, warm ones never stop coming.

    `hybrid` is not among them: what it has given up goes when nothing else waits.
    """
    params = {
        "sjf": {"aging_s": 5.0, "max_wait_s": 20.0},
        "lpm": {"aging_tokens_per_s": 1.0},
        "dlpm": {"quantum": 32.0},
    }
    machine = Machine(max_num_seqs=2, budget=8, num_blocks=64).under(policy, params)
    # Two prompts of 12, of which 8 are cached, and their tokens fill two slots for good.
    stream = Burst(tenant="a", count=200, gap_s=1, prompt_len=12, num_shared=8, output_len=2)
    unfavoured = Burst(tenant="a", at_s=20, prompt_len=40, output_len=8)
    world = World([stream, unfavoured], machine).run()
    log = next(log for log in world.logs.values() if log.burst is unfavoured)
    assert log.admitted_s is not None
    assert log.admitted_s - log.arrival_s <= 90.0
    assert log.num_output == 8


def test_low_bands_get_their_share_and_no_more() -> None:
    """Under a flood of a higher band a lower one gets its share; batch, with none, waits."""
    machine = Machine(max_num_seqs=8, budget=64, num_blocks=256, caching=False)
    flood = Burst(tenant="high", count=2500, prompt_len=30, output_len=4, band=Band.PRIORITY)
    low = Burst(tenant="low", count=2500, prompt_len=30, output_len=4, band=Band.DEFAULT)
    batch = Burst(tenant="batch", count=10, prompt_len=30, output_len=4, band=Band.BATCH)
    world = World([flood, low, batch], machine)
    while world.tree.bands.get("PRIORITY") is None or world.tree.bands["PRIORITY"].num_waiting:
        assert world.turn()
    total = world.service["high",] + world.service["low",]
    assert 0.05 <= world.service["low",] / total <= 0.15
    assert world.service["batch",] == 0.0


def test_aging_lifts_low_bands_under_strict_priority() -> None:
    """`priority` alone orders the bands as well, and waiting lifts a request into higher ones."""
    machine = Machine(max_num_seqs=1, budget=16).under("priority", {"priority": {"aging_s": 20.0}})
    stream = Burst(tenant="a", count=100, gap_s=1, output_len=2, band=Band.PRIORITY)
    low = Burst(tenant="b", at_s=5, output_len=2, band=Band.FLEX)
    world = World([stream, low], machine).run()
    log = next(log for log in world.logs.values() if log.burst is low)
    assert log.admitted_s is not None
    assert 40.0 <= log.admitted_s - log.arrival_s <= 90.0
