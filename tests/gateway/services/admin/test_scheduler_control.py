"""Showing the schedulers of a process, and laying over what operators set, against a fake."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from gateway.domain import Org, Tenant
from gateway.domain.scheduler_policy import Changes, OperatorPolicy
from gateway.errors import Conflict, InvalidRequest, ModelNotFound
from gateway.services.admin.scheduler_control import SchedulerControl, named, tenant_ids
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
    gone = uuid4()
    models[1].service.tenant_ids = (str(ACME.id), str(gone))
    shown = control.look(max_tenants=9)
    assert tenant_ids(shown) == {ACME.id, gone}
    small, large = named(shown, [ACME])
    assert (small["model"], small["policy"], small["preset"]) == ("small", "vtc", "mixed")
    assert small["config"]["composer"]["max_bypasses"] == 0
    assert small["state"]["counts"]["queued"] == 0
    assert large["state"]["slack_s"] is None
    assert large["state"]["rejections"] == {"overloaded": 3}
    assert "config" not in large["state"]
    [band] = large["state"]["bands"]
    assert band["band"] == "default"
    found = [(tenant["tenant"], tenant["tenant_id"]) for tenant in band["tenants"]]
    assert found == [("acme", str(ACME.id)), (None, str(gone))]


def configure(control: SchedulerControl, changes: Changes, *, model: str | None = None) -> None:
    control.lay(control.revised(control.policy, changes, model=model))


def test_a_change_reaches_one_model_or_all(
    control: SchedulerControl, models: list[FakeModel]
) -> None:
    """Without a model every scheduler is set, with one only that; it is told as it was set."""
    configure(control, {"policy": "fcfs"}, model="large")
    [large] = control.describe("large")
    assert (large["model"], large["policy"]) == ("large", "fcfs")
    assert models[0].service.wanted is None
    configure(control, {"composer": {"max_bypasses": 4}})
    both = control.describe()
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
    configure(control, {"policy": "fcfs"})
    assert {one["policy"] for one in control.look(max_tenants=9)} == {"vtc"}
    configure(control, {"composer": {"max_bypasses": 4}})
    for model in models:
        model.service.step()
    assert {one["policy"] for one in control.look(max_tenants=9)} == {"fcfs"}
    assert {one["config"]["composer"]["max_bypasses"] for one in control.look(max_tenants=9)} == {4}


def test_a_bad_change_sets_nothing(control: SchedulerControl, models: list[FakeModel]) -> None:
    """All of a change is checked before any of it is done."""
    with pytest.raises(InvalidRequest):
        configure(control, {"policy": "fcfs", "composer": {"max_bypasses": -1}})
    with pytest.raises(ModelNotFound) as unknown:
        configure(control, {"policy": "fcfs"}, model="medium")
    assert unknown.value.param == "model"
    assert all(model.service.wanted is None for model in models)
    configure(control, {"admission": {"ttft_fraction": 0.5}})
    assert control.describe()[0]["policy"] == PRESETS["mixed"].fairness.policy


def test_every_value_says_who_set_it(control: SchedulerControl) -> None:
    """What operators named, or a preset that they did, is theirs; the rest is of the settings."""
    configure(control, {"policy": "fcfs", "fairness": {"band_shares": {"flex": 0.1}}})
    [small, _] = control.describe()
    fairness = small["origins"]["fairness"]
    assert (fairness["policy"], fairness["unit"]) == ("operators", "settings")
    assert (fairness["band_shares"]["flex"], fairness["band_shares"]["due"]) == (
        "operators",
        "settings",
    )
    assert set(small["origins"]["composer"].values()) == {"settings"}
    configure(control, {"preset": "low-latency"})
    [small, _] = control.describe()
    assert set(small["origins"]["composer"].values()) == {"operators"}
    assert small["origins"]["admission"]["max_num_queued"] == "settings"
    assert small["origins"]["prefix_caching"] == "settings"


def test_what_is_set_is_laid_over_the_settings_of_each_process() -> None:
    """Two processes of other settings share what was set and nothing else; without it, nothing."""
    short = replace(
        PRESETS["mixed"], admission=replace(PRESETS["mixed"].admission, max_num_queued=7)
    )
    service = FakeService(short)
    other = SchedulerControl([FakeModel("small", service)])
    set_elsewhere = OperatorPolicy(1, {"preset": "high-throughput"})
    other.lay(set_elsewhere)
    assert service.wanted is not None
    assert service.wanted.admission.max_num_queued == 7
    assert service.wanted.composer == PRESETS["high-throughput"].composer
    other.lay(OperatorPolicy(2))
    assert service.wanted == short


def test_what_this_release_does_not_know_leaves_what_holds(
    control: SchedulerControl, models: list[FakeModel], caplog: pytest.LogCaptureFixture
) -> None:
    """It is told once, by its model alone; a change here cannot build on it, but may end it."""
    configure(control, {"policy": "fcfs"})
    newer = {"policy": "edf", "composer": {"a_later_number": 3}}
    for _ in range(3):
        control.lay(OperatorPolicy(2, {"policy": "edf"}, {"large": newer, "huge": {}}))
    small, large = control.describe()
    assert (small["policy"], small["problem"]) == ("edf", None)
    assert (large["policy"], large["set"]) == ("fcfs", newer)
    assert "composer.a_later_number" in large["problem"]
    assert large["origins"]["fairness"]["policy"] == "operators"
    assert control.not_served == ["huge"]
    assert len([line for line in caplog.messages if "cannot be had here" in line]) == 1
    with pytest.raises(Conflict, match="a_later_number"):
        configure(control, {"policy": "sjf"}, model="large")
    # A preset sets all numbers of its sections, those that nobody here knows as well.
    configure(control, {"preset": "mixed"}, model="large")
    assert [one["problem"] for one in control.describe()] == [None, None]
    assert models[1].service.wanted is not None
    assert models[1].service.wanted.fairness.policy == "edf"


@pytest.mark.parametrize(
    "document",
    [
        {"composer": 5},
        {"policy": 5},
        {"preset": ["mixed"]},
        {"fairness": {"band_shares": {"later": 0.1}}},
        {"fairness": {"params": {"later": {}}}},
        {"later": {"number": 1}},
        {"admission": {"max_num_queued": 0}},
    ],
)
def test_whatever_is_set_stops_no_process(
    control: SchedulerControl, models: list[FakeModel], document: Changes
) -> None:
    """A document of another release is refused as a whole, and everything is shown as before."""
    control.lay(OperatorPolicy(1, document))
    assert all(model.service.wanted is None for model in models)
    assert {one["policy"] for one in control.look(max_tenants=9)} == {"vtc"}
    assert all(one["problem"] for one in control.describe())


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
