"""Service as time: shares of the machine between tenants whose tokens cost it unlike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.step_cost import StepFeatures
from scheduler.config import FairnessConfig, FairnessUnit, SchedulerConfig
from scheduler.simulator.fairness import service_of_tenants
from scheduler.simulator.records import Run
from scheduler.simulator.run import simulate
from scheduler.simulator.setup import load_machine
from scheduler.simulator.workload import Arrival, Workload

MACHINE = replace(load_machine("a100-llama-3-8b"), max_num_seqs=16)


def _flood(tenant_id: str, count: int, **kwargs: object) -> list[Arrival]:
    arrival = Arrival(
        at_s=0.0, tenant_id=tenant_id, num_prompt_tokens=200, num_output_tokens=60, max_tokens=60
    )
    return [replace(arrival, **kwargs)] * count  # type: ignore[arg-type]


def _run(arrivals: list[Arrival], unit: FairnessUnit, until_s: float) -> Run:
    config = SchedulerConfig(fairness=FairnessConfig(unit=unit))
    workload = Workload(name="w", arrivals=arrivals, duration_s=until_s)
    return simulate(MACHINE, config, workload, until_s=until_s, checks=True)


def _shares(run: Run, since_s: float) -> dict[str, float]:
    service = service_of_tenants(run, since_s=since_s)
    return dict(zip(run.tenant_ids, (service / service.sum()).tolist(), strict=True))


def _num_drawn(run: Run, tenant_id: str) -> int:
    return sum(r.num_output_tokens for r in run.records if r.arrival.tenant_id == tenant_id)


def test_a_cached_context_is_not_free() -> None:
    """By time both have half; by tokens the one whose rows read 32k each has far more of it."""
    prefix = {"block_ids": tuple(range(64)), "num_prompt_tokens": 32_768 + 64}
    contest = [*_flood("long", 200, **prefix), *_flood("short", 1_200)]
    by_time, by_tokens = _run(contest, "time", 60.0), _run(contest, "tokens", 60.0)
    assert _shares(by_time, 20.0)["short"] == pytest.approx(0.5, abs=0.06)
    drawn = {
        unit: _num_drawn(run, "short") for unit, run in (("time", by_time), ("tokens", by_tokens))
    }
    assert drawn["time"] > 1.5 * drawn["tokens"]


def test_service_adds_up_to_the_time_that_the_engine_was_busy() -> None:
    """What all plans gave is about the steps' time, and what was held of the memory besides."""
    arrivals = [*_flood("a", 20, num_prompt_tokens=6_000), *_flood("b", 20)]
    run = _run(arrivals, "time", 600.0)
    assert all(record.is_complete for record in run.records)
    full = StepFeatures(num_prefill_tokens=2_560, prefill_attended_tokens=0)
    token_s = MACHINE.cost.price_s(full) / 2_560
    assert 0.9 < sum(run.service.amounts) * token_s / run.busy_s < 1.3
