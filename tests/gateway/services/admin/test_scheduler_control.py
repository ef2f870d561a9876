"""Showing and setting the schedulers of a process, against a fake of their service."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from gateway.domain import Org, Tenant
from gateway.errors import InvalidRequest, ModelNotFound
from gateway.services.admin.scheduler_control import SchedulerControl
from scheduler.config import PRESETS
from tests.gateway.fake_scheduling import FakeModel, FakeService

ACME = Tenant(UUID(int=1), UUID(int=9), "acme", 3.0, datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def models() -> list[FakeModel]:
    return [FakeModel("small", FakeService()), FakeModel("large", FakeService())]


@pytest.fixture
def control(models: list[FakeModel]) -> SchedulerControl:
    return SchedulerControl(models)


def test_each_model_is_shown_with_its_numbers(
    control: SchedulerControl, models: list[FakeModel]
) -> None:
    """Policy, preset, every number, and the state with the tenants' names, once."""
    models[1].service.tenant_ids = (str(ACME.id), "gone")
    small, large = control.show([ACME])
    assert (small["model"], small["policy"], small["preset"]) == ("small", "vtc", "mixed")
    assert small["config"]["composer"]["max_bypasses"] == 0
    assert small["state"]["counts"]["queued"] == 0
    assert large["state"]["slack_s"] is None
    assert large["state"]["rejections"] == {"overloaded": 3}
    assert "config" not in large["state"]
    [band] = large["state"]["bands"]
    assert band["band"] == "default"
    named = [(tenant["tenant"], tenant["tenant_id"]) for tenant in band["tenants"]]
    assert named == [("acme", str(ACME.id)), (None, "gone")]


def test_a_change_reaches_one_model_or_all(
    control: SchedulerControl, models: list[FakeModel]
) -> None:
    """Without a model every scheduler is set, with one only that; the answer is what was set."""
    [answer] = control.configure({"policy": "fcfs"}, model="large")
    assert (answer["model"], answer["policy"]) == ("large", "fcfs")
    assert models[0].service.wanted is None
    both = control.configure({"composer": {"max_bypasses": 4}})
    assert [one["policy"] for one in both] == ["vtc", "fcfs"]
    assert [one["preset"] for one in both] == [None, None]
    for model, policy in zip(models, ("vtc", "fcfs"), strict=True):
        assert model.service.wanted is not None
        assert model.service.wanted.fairness.policy == policy
        assert model.service.wanted.composer.max_bypasses == 4


def test_two_changes_within_a_step_both_hold(
    control: SchedulerControl, models: list[FakeModel]
) -> None:
    """What is shown is in force only after the step; a second change still builds on the first."""
    control.configure({"policy": "fcfs"})
    assert {one["policy"] for one in control.show([])} == {"vtc"}
    control.configure({"composer": {"max_bypasses": 4}})
    for model in models:
        model.service.step()
    assert {one["policy"] for one in control.show([])} == {"fcfs"}
    assert {one["config"]["composer"]["max_bypasses"] for one in control.show([])} == {4}


def test_a_bad_change_sets_nothing(control: SchedulerControl, models: list[FakeModel]) -> None:
    """All of a change is checked before any of it is done."""
    with pytest.raises(InvalidRequest):
        control.configure({"policy": "fcfs", "composer": {"max_bypasses": -1}})
    with pytest.raises(ModelNotFound) as unknown:
        control.configure({"policy": "fcfs"}, model="medium")
    assert unknown.value.param == "model"
    assert all(model.service.wanted is None for model in models)
    [again, _] = control.configure({"admission": {"ttft_fraction": 0.5}})
    assert again["policy"] == PRESETS["mixed"].fairness.policy


def test_a_tenants_weight_reaches_every_scheduler(
    control: SchedulerControl, models: list[FakeModel]
) -> None:
    """What waits of a tenant, for whatever model, gets its present weight."""
    control.set_tenant(ACME)
    assert [model.service.weights for model in models] == [{str(ACME.id): 3.0}] * 2
    org = Org(UUID(int=9), UUID(int=0), "umbrella", 4.0, ACME.created_at)
    control.set_org(org)
    assert [model.service.weights[str(org.id)] for model in models] == [4.0] * 2


def test_the_least_pace_is_that_of_the_slowest_model(
    control: SchedulerControl, models: list[FakeModel]
) -> None:
    """A promise holds for every model, so none may be shorter than any of them can keep."""
    models[0].service.least_s, models[1].service.least_s = 0.020, 0.045
    assert control.least_pace_ms() == 45.0
