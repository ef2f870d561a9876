"""Tenants whose requests all fit at once, on the simulated machine of the demo model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from scheduler.config import PRESETS, FairnessConfig, SchedulerConfig
from scheduler.request import Slo
from scheduler.simulator.records import Run
from scheduler.simulator.run import simulate
from scheduler.simulator.setup import load_machine
from scheduler.simulator.workload import Arrival, Workload

# As many rows as a server has by default, and blocks for all of them.
MACHINE = replace(load_machine("cpu-demo"), max_num_seqs=256, num_blocks=8_192)
UNTIL_S = 0.4


def beside(streams: dict[str, int], loss: float, **weights: float) -> Run:
    """Run requests of each tenant beside each other; none of them ends before the run does."""
    arrivals = [
        Arrival(
            at_s=0.0,
            tenant_id=tenant,
            num_prompt_tokens=8,
            num_output_tokens=2_000,
            weight=weights.get(tenant, 1.0),
        )
        for tenant, number in streams.items()
        for _ in range(number)
    ]
    config = SchedulerConfig(fairness=FairnessConfig(max_throughput_loss=loss))
    workload = Workload(name="rows", arrivals=arrivals, duration_s=0.0)
    return simulate(MACHINE, config, workload, until_s=UNTIL_S)


def tokens(run: Run) -> Counter[str]:
    drawn: Counter[str] = Counter()
    for record in run.records:
        drawn[record.arrival.tenant_id] += record.num_output_tokens
    return drawn


def time_share(run: Run, tenant: str) -> float:
    """Say what part of the time of all rows was a tenant's, by what tokens and contexts cost."""
    line = MACHINE.cost.small
    spent_s: Counter[str] = Counter()
    for record in run.records:
        num_tokens = record.num_output_tokens
        context = 8 + num_tokens / 2
        per_token_s = line.per_decode_token_s + line.per_decode_context_token_s * context
        spent_s[record.arrival.tenant_id] += num_tokens * per_token_s
    return spent_s[tenant] / spent_s.total()


@pytest.mark.parametrize(
    ("streams", "weights", "before", "share"),
    [
        ({"a": 48, "b": 96}, {}, 1 / 3, 1 / 2),
        ({"a": 96, "b": 48}, {"b": 3.0}, 2 / 3, 1 / 4),
    ],
    ids=["48 beside 96", "96 beside 48 of weight 3"],
)
def test_shares_are_those_of_weights(
    streams: dict[str, int], weights: dict[str, float], before: float, share: float
) -> None:
    """Time is shared by rows where nothing may be lost, and by weights by default."""
    by_rows = beside(streams, 0.0, **weights)
    by_weight = beside(streams, 0.2, **weights)
    assert time_share(by_rows, "a") == pytest.approx(before, rel=0.01)
    assert time_share(by_weight, "a") == pytest.approx(share, rel=0.1)
    assert tokens(by_weight).total() >= 0.8 * tokens(by_rows).total()


@pytest.mark.parametrize(("loss", "slower"), [(0.2, 3.5), (0.3, 2.5)])
def test_a_light_stream_is_not_slowed_by_a_flood(loss: float, slower: float) -> None:
    """Beside 150 rows a token takes at most so many times what it does alone."""
    alone, flooded, full = (
        beside(streams, max_loss)
        for streams, max_loss in (
            ({"a": 1}, loss),
            ({"a": 1, "b": 150}, loss),
            ({"a": 1, "b": 150}, 0.0),
        )
    )
    tpot_s = [run.records[0].tpot_s or 0.0 for run in (alone, flooded, full)]
    assert tpot_s[1] <= slower * tpot_s[0] < tpot_s[2]
    assert tokens(flooded).total() >= (1 - loss - 0.02) * tokens(full).total()


@pytest.mark.parametrize("max_gap_s", [0.11, 0.27])
def test_gaps_are_kept_beside_a_tenant_that_rows_sit_out_for(max_gap_s: float) -> None:
    """With two steps in flight as with one: a row that sat one out is not late for the next, nor
    is the second token of one whose first is still in flight.
    """
    machine = load_machine("a100-llama-3-8b")
    assert machine.depth == 2
    promised = Arrival(
        at_s=0.0,
        tenant_id="promised",
        num_prompt_tokens=500,
        num_output_tokens=400,
        slo=Slo(max_gap_s=max_gap_s),
    )
    light = replace(promised, tenant_id="light", num_prompt_tokens=1_500, slo=Slo())
    arrivals = [promised.at(n * 0.1) for n in range(140)] + [light.at(float(n)) for n in range(14)]
    arrivals.sort(key=lambda arrival: arrival.at_s)
    workload = Workload(name="gaps", arrivals=arrivals, duration_s=14.0)
    run = simulate(machine, PRESETS["mixed"], workload, until_s=14.0)
    gaps_s = [r.max_gap_s for r in run.records if r.arrival.tenant_id == "promised"]
    assert max(gaps_s) < 1.01 * max_gap_s


def test_a_second_token_is_in_time_beside_long_prompts() -> None:
    """The step that draws it is planned while the first is in flight, and is short all the same."""
    machine = load_machine("a100-llama-3-8b")
    slo = Slo(tpot_s=0.05, max_gap_s=0.1)
    short = Arrival(
        at_s=0.0, tenant_id="short", num_prompt_tokens=700, num_output_tokens=3, slo=slo
    )
    long = Arrival(at_s=0.0, tenant_id="long", num_prompt_tokens=13_000, num_output_tokens=9)
    arrivals = [short.at(n * 0.3) for n in range(20)] + [long.at(n * 1.5) for n in range(4)]
    arrivals.sort(key=lambda arrival: arrival.at_s)
    workload = Workload(name="second tokens", arrivals=arrivals, duration_s=6.0)
    run = simulate(machine, PRESETS["mixed"], workload, until_s=20.0)
    records = [record for record in run.records if record.arrival.tenant_id == "short"]
    assert len(records) == 20
    assert max(record.max_gap_s for record in records) < 0.1
    assert max(record.tpot_s or 1.0 for record in records) < 0.05
