"""Changing how a scheduler decides while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

import fakes
from fakes import Driver
from scheduler.config import PRESETS, FairnessConfig, SchedulerConfig, first_come
from scheduler.core import Scheduler
from scheduler.errors import UnknownPolicy
from scheduler.policies.base import Child, Policy
from scheduler.policies.vtc import Vtc
from scheduler.request import FinishReason


def with_policy(policy: str) -> SchedulerConfig:
    return replace(first_come(), fairness=FairnessConfig(policy=policy))


def flooded(config: SchedulerConfig, *, num_each: int = 6) -> Driver:
    """Queue requests of tenant a, then those of tenant b, on an engine of two rows."""
    driver = Driver(fakes.make_engine(max_num_seqs=2))
    driver.scheduler = Scheduler(driver.engine.info, config)
    for tenant in ("a", "b"):
        for n in range(num_each):
            driver.offer(fakes.make_request(f"{tenant}{n}", tenant_id=tenant, ignore_eos=True))
    return driver


def order(driver: Driver) -> str:
    return "".join(new.request_id[0] for plan in driver.plans for new in plan.admitted)


def test_a_policy_takes_over_at_the_next_step() -> None:
    """What waits is put in the new order, and nothing that runs is disturbed."""
    driver = flooded(with_policy("fcfs"))
    driver.turn()
    assert order(driver) == "aa"
    driver.scheduler.configure(with_policy("vtc"), driver.now)
    driver.run()
    assert order(driver).startswith("aabb")
    assert {output.finish_reason for output in driver.last.values()} == {FinishReason.LENGTH}
    assert len(driver.last) == 12


def test_who_has_many_siblings_is_not_looked_at_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of configuration takes time by the number of tenants, and not by its square."""
    resume, told = Vtc.resume, []

    def noted(self: Vtc, before: Policy, counterparts: Mapping[Child, Child]) -> None:
        told.append(len(counterparts))
        resume(self, before, counterparts)

    monkeypatch.setattr(Vtc, "resume", noted)
    driver = flooded(with_policy("vtc"), num_each=1)
    for n in range(100):
        driver.offer(fakes.make_request(f"r{n}", tenant_id=f"t{n}"))
    config = with_policy("vtc")
    fairness = replace(config.fairness, borrow_tokens=10.0)
    driver.scheduler.configure(replace(config, fairness=fairness), driver.now)
    assert 102 < sum(told) < 400


def test_counters_stay_where_the_policy_stays() -> None:
    """A tenant that was served before a change of numbers is not served twice for it."""
    driver = flooded(with_policy("vtc"), num_each=8)
    for _ in range(20):
        driver.turn()
    before = driver.scheduler.state(driver.now).bands[0].tenants
    config = with_policy("vtc")
    config = replace(config, fairness=replace(config.fairness, borrow_tokens=10.0))
    driver.scheduler.configure(config, driver.now)
    after = driver.scheduler.state(driver.now).bands[0].tenants
    assert [t.counter for t in after] == [t.counter for t in before]
    assert [(t.service, t.queued, t.running) for t in after] == [
        (t.service, t.queued, t.running) for t in before
    ]


def test_counters_start_level_under_another_policy() -> None:
    """What one policy counted means nothing to another; what was served is still told."""
    driver = flooded(with_policy("vtc"), num_each=8)
    for _ in range(20):
        driver.turn()
    driver.scheduler.configure(with_policy("fcfs"), driver.now)
    tenants = driver.scheduler.state(driver.now).bands[0].tenants
    assert [tenant.counter for tenant in tenants] == [0.0, 0.0]
    assert min(tenant.service for tenant in tenants) > 0.0


@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("depth", [1, 2])
def test_presets_may_change_with_steps_in_flight(preset: str, depth: int) -> None:
    """A change between a plan and its report loses nothing and computes nothing twice."""
    driver = Driver(fakes.make_engine(max_num_seqs=3, depth=depth))
    requests = [
        fakes.make_request(f"r{n}", prompt=range(n, n + 9), tenant_id=f"t{n % 3}", seed=n)
        for n in range(9)
    ]
    for request in requests:
        driver.offer(request)
    for _ in range(3):
        plan = driver.scheduler.plan(driver.now)
        assert plan is not None
        driver.handles.append(driver.engine.launch(plan))
        driver.scheduler.configure(PRESETS[preset], driver.now)
        if len(driver.handles) == depth:
            driver.collect()
    driver.run()
    for request in requests:
        tokens, reason = fakes.expected_tokens(request, driver.engine.info)
        assert driver.tokens[request.request_id] == tokens
        assert driver.last[request.request_id].finish_reason is reason
    assert driver.scheduler.snapshot().free_blocks == 32


def test_weights_change_for_what_already_waits() -> None:
    """A tenant whose weight is raised gets its new share of the requests that wait."""
    driver = flooded(with_policy("vtc"), num_each=40)
    driver.scheduler.set_weight("b", 3.0)
    for _ in range(60):
        driver.turn()
    tenants = {t.tenant_id: t for t in driver.scheduler.state(driver.now).bands[0].tenants}
    assert tenants["b"].weight == 3.0
    assert tenants["b"].service / tenants["a"].service == pytest.approx(3.0, rel=0.15)


@pytest.mark.parametrize("organisation", ["", "one"])
def test_an_edited_weight_counts_for_what_may_be_held(organisation: str) -> None:
    """Of slots and the KV cache a tenant or an organisation has its new share at once."""
    driver = flooded(with_policy("vtc"), num_each=1)
    driver.offer(replace(fakes.make_request("c", tenant_id="c"), organisation_id=organisation))
    scheduler = driver.scheduler
    if organisation:
        scheduler.set_organisation_weight(organisation, 3.0)
    else:
        scheduler.set_weight("c", 3.0)
    sequence = scheduler._lifecycle.find("c")
    assert sequence is not None
    assert scheduler._running.holdings.share(sequence) == pytest.approx(0.6)


def test_an_edited_weight_outlives_a_change_of_policy() -> None:
    """Requests that came with the old weight do not bring it back when the order changes."""
    driver = flooded(with_policy("vtc"))
    driver.scheduler.set_weight("b", 3.0)
    driver.scheduler.configure(with_policy("vtc/vtc/fcfs"), driver.now)
    tenants = {t.tenant_id: t for t in driver.scheduler.state(driver.now).bands[0].tenants}
    assert (tenants["a"].weight, tenants["b"].weight) == (1.0, 3.0)


def test_an_unknown_policy_is_refused_by_name() -> None:
    """The error names what was asked for and what there is, and nothing changes."""
    driver = flooded(with_policy("vtc"))
    with pytest.raises(UnknownPolicy, match=r"no policy 'fairest': choose one of .*vtc"):
        driver.scheduler.configure(with_policy("fairest"), driver.now)
    assert driver.scheduler.config.fairness.policy == "vtc"
    driver.run()
    assert len(driver.last) == 12
