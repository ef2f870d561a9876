"""Schedulers with one rule taken out, each of which a property must find out.

A property that no wrong scheduler can fail says nothing. Each mutant is searched with random
tenants from a fixed seed; the scheduler as it is passes the same search.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from engine.contract import EngineInfo
from fairness_properties import coming_back_erases_nothing, interval_service_is_bounded
from scheduler.config import SchedulerConfig
from scheduler.core import Scheduler
from scheduler.policies.base import Child, Siblings
from scheduler.policies.vtc import Vtc
from scheduler.sequence import Sequence
from scheduler.step.composer import Composer
from tenant_world import Burst, Machine, MakeScheduler, bursts, timed_scheduler

pytestmark = pytest.mark.thorough

_Property = Callable[[list[Burst], Machine, MakeScheduler], None]
_LONG_PROMPTS = bursts(
    tenants="ab",
    max_count=40,
    shares_prefix=False,
    ttfts=(5.0, 90.0),
    prompt_lens=(1, 48),
    output_lens=(1, 1),
)


def _is_found(
    holds: _Property,
    sent: st.SearchStrategy[list[Burst]],
    machine: Machine,
    make_scheduler: MakeScheduler = Scheduler,
) -> bool:
    def fails(drawn: list[Burst]) -> bool:
        try:
            holds(drawn, machine, make_scheduler)
        except AssertionError:
            return True
        return False

    try:
        find(
            sent,
            fails,
            settings=settings(
                max_examples=60,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
            random=random.Random(1),
        )
    except NoSuchExample:
        return False
    return True


@pytest.fixture
def without_lift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let who comes back keep the counter that it left with."""

    def activate(self: Vtc, child: Child, siblings: Siblings, now: float) -> None:
        """Do nothing."""

    monkeypatch.setattr(Vtc, "activate", activate)


@pytest.mark.parametrize("holds", [interval_service_is_bounded, coming_back_erases_nothing])
def test_missing_lift_is_found(without_lift: None, holds: _Property) -> None:
    """Without lift, the interval bound and the rule on idle time both fail."""
    assert _is_found(holds, bursts(), Machine())


def test_skipping_what_does_not_fit_is_found() -> None:
    """A composer that passes by a request that does not fit fails the interval bound."""
    sent = bursts(max_count=40)
    assert _is_found(
        interval_service_is_bounded, sent, Machine(num_blocks=10, max_bypasses=1_000_000)
    )
    assert not _is_found(interval_service_is_bounded, sent, Machine(num_blocks=10))


def test_charging_by_the_chunk_is_found() -> None:
    """Prompts that are charged as their chunks are computed fail the interval bound."""
    machine = Machine(policy="vtc/vtc/fcfs", max_num_seqs=8, num_blocks=200)
    assert _is_found(interval_service_is_bounded, _LONG_PROMPTS, machine, _charging_by_the_chunk)
    assert not _is_found(interval_service_is_bounded, _LONG_PROMPTS, machine)


def test_unfair_order_of_time_is_found() -> None:
    """First come, first served, fails the bound in machine time too."""
    sent = bursts(max_count=120, shares_prefix=False)
    machine = Machine(policy="fcfs", unit="time")
    assert _is_found(interval_service_is_bounded, sent, machine, timed_scheduler)


def test_unfair_order_is_found() -> None:
    """First come, first served, fails the interval bound."""
    assert _is_found(interval_service_is_bounded, bursts(max_count=40), Machine(policy="fcfs"))


def _charging_by_the_chunk(info: EngineInfo, config: SchedulerConfig) -> Scheduler:
    scheduler = Scheduler(info, config)
    composer: Composer = scheduler._composer
    plan_slice = composer._slice

    def admit(sequence: Sequence, now: float) -> None:
        sequence.num_charged = sequence.num_prompt_tokens

    def charge_slice(sequence: Sequence, *args: object) -> None:
        before = sequence.num_computed
        plan_slice(sequence, *args)  # type: ignore[arg-type]
        num_new = min(sequence.num_computed, sequence.num_prompt_tokens) - before
        scheduler._lifecycle.waiting.charge(sequence, float(num_new), 0.0)

    scheduler._lifecycle.charges.admit = admit  # type: ignore[method-assign]
    composer._slice = charge_slice  # type: ignore[method-assign]
    return scheduler
