"""Who is taken in is served in time, whatever the load, the tenants and the step model's errors."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from engine.contract import EngineInfo
from engine.step_cost import StepFeatures
from scheduler.config import AdmissionConfig, FairnessConfig, SchedulerConfig
from scheduler.core import Scheduler
from scheduler.learn.step_model import StepModel
from scheduler.request import Slo
from scheduler.simulator.noise import noisy
from scheduler.simulator.records import Record, Run
from scheduler.simulator.run import simulate
from scheduler.simulator.setup import load_machine
from scheduler.simulator.synthetic import azure_lengths, poisson
from scheduler.simulator.workload import Arrival, Workload

_MACHINE = load_machine("a100-llama-3-8b")
_TTFT_S = 2.0
_SETTINGS = settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    # A run takes seconds, and a smaller one shows nothing that a large one does not.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


class StubbornModel(StepModel):
    """Price steps wrongly by a factor and never learn."""

    def __init__(self, factor: float) -> None:
        super().__init__(_MACHINE.cost)
        self._factor = factor

    def price_s(self, features: StepFeatures) -> float:
        return self._factor * super().price_s(features)

    def observe(self, features: StepFeatures, step_s: float) -> None:
        pass


def overload(rate: float, num_tenants: int, seed: int) -> Workload:
    """Let tenants of uneven demand send Azure's lengths for a minute and a half."""
    draw = random.Random(seed)
    demand = [1.0 / (n + 1) for n in range(num_tenants)]

    def make(index: int, at_s: float, prompt: int, output: int) -> Arrival:
        return Arrival(
            at_s=at_s,
            tenant_id=f"t{draw.choices(range(num_tenants), demand)[0]}",
            num_prompt_tokens=prompt,
            num_output_tokens=output,
            slo=Slo(ttft_s=_TTFT_S),
        )

    return poisson(
        "overload", rate=rate, duration_s=90.0, lengths=azure_lengths(), seed=seed, make=make
    )


def config(policy: str) -> SchedulerConfig:
    return SchedulerConfig(fairness=FairnessConfig(policy=policy))


def accepted(run: Run) -> list[Record]:
    return [record for record in run.records if record.reject is None]


def in_time(records: Sequence[Record]) -> float:
    """Return the part of the requests whose first token came as promised."""
    return sum(r.has_begun and r.ttft_s <= _TTFT_S for r in records) / len(records)


@pytest.mark.parametrize("policy", ["vtc", "fcfs"])
@_SETTINGS
@given(rate=st.floats(4.0, 11.0), num_tenants=st.integers(1, 8), seed=st.integers(0, 99))
def test_accepted_requests_are_served_in_time(
    policy: str, rate: float, num_tenants: int, seed: int
) -> None:
    """With a true step model at least 99 % of those taken in have their first token in time."""
    run = simulate(_MACHINE, config(policy), overload(rate, num_tenants, seed))
    assert in_time(accepted(run)) >= 0.99


@pytest.mark.parametrize("factor", [0.8, 1.2])
@_SETTINGS
@given(rate=st.floats(6.0, 11.0), num_tenants=st.integers(1, 8), seed=st.integers(0, 99))
def test_a_wrong_step_model_costs_little(
    factor: float, rate: float, num_tenants: int, seed: int
) -> None:
    """With a model that stays 20 % off, at least 95 % of those taken in are served in time."""

    def open_with(info: EngineInfo, config: SchedulerConfig) -> Scheduler:
        return Scheduler(info, config, step_model=StubbornModel(factor))

    run = simulate(_MACHINE, config("vtc"), overload(rate, num_tenants, seed), open_with=open_with)
    assert in_time(accepted(run)) >= 0.95


@_SETTINGS
@given(rate=st.floats(6.0, 11.0), num_tenants=st.integers(1, 8), seed=st.integers(0, 99))
def test_steps_of_uncertain_length_cost_little(rate: float, num_tenants: int, seed: int) -> None:
    """With steps that take up to 20 % more or less, at least 95 % are served in time."""
    machine = noisy(_MACHINE, 0.2, seed=seed)
    run = simulate(machine, config("vtc"), overload(rate, num_tenants, seed), prior=_MACHINE.cost)
    assert in_time(accepted(run)) >= 0.95


def test_without_admission_most_would_be_late() -> None:
    """The load is one at which taking everyone in breaks most promises: the test can fail."""
    open_door = SchedulerConfig(admission=AdmissionConfig(predict_ttft=False, drop_expired=False))
    run = simulate(_MACHINE, open_door, overload(11.0, 4, 1))
    assert in_time(accepted(run)) < 0.5
