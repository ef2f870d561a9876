"""The last ten minutes: sampled whether somebody looks or not, gaps left as gaps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.services.admin.live_history import LiveHistory
from gateway.services.requests.recent import FirstTokens, RecentRequests
from scheduler.request import Band
from scheduler.state import SchedulerState, Snapshot
from tests.gateway.fake_scheduling import FakeModel, FakeService
from tests.gateway.services.requests.test_recorder import SteppedClock

pytestmark = pytest.mark.anyio

_NOTHING = Snapshot(**dict.fromkeys(Snapshot.__slots__, 0))


class Service(FakeService):
    """Count as a test has set it, and note how many tenants it was asked for."""

    counts = _NOTHING
    most: int | None = -1

    def state(self, *, max_tenants: int | None = None) -> SchedulerState:
        self.most = max_tenants
        return replace(super().state(), counts=self.counts)


async def test_a_sample_sums_models_and_looks_at_no_tenant() -> None:
    """Queues and blocks of all models together, and rates between two samples."""
    clock = SteppedClock()
    one, two = Service(tenant_ids=("a", "b")), Service(tenant_ids=("a",))
    history = LiveHistory(
        [FakeModel("one", one), FakeModel("two", two)], RecentRequests(clock=clock), clock=clock
    )
    assert history.newest() is None
    one.counts = replace(_NOTHING, running=3, total_blocks=100, free_blocks=40)
    two.counts = replace(_NOTHING, running=1, total_blocks=100, free_blocks=100)
    await history.sample()
    first = history.newest()
    assert first is not None
    assert (first.queued[Band.DEFAULT], first.queued[Band.BATCH], first.num_running) == (3, 0, 4)
    assert first.kv_used == pytest.approx(0.3)
    assert first.prompt_tokens_per_s is None
    assert first.first_tokens == FirstTokens()
    assert one.most == 0
    clock.now_s = 2.0
    one.counts = replace(one.counts, num_prompt_tokens=300, num_output_tokens=50)
    await history.sample()
    second = history.newest()
    assert second is not None
    assert (second.prompt_tokens_per_s, second.output_tokens_per_s) == (150.0, 25.0)


async def test_samples_are_of_ten_minutes() -> None:
    """What is older is not told, also where sampling had stopped meanwhile."""
    clock = SteppedClock()
    history = LiveHistory([FakeModel("sim", Service())], RecentRequests(clock=clock), clock=clock)
    for second in range(0, 1000, 2):
        clock.now_s = float(second)
        await history.sample()
    assert len(history.samples()) == 300
    assert history.samples()[0].at_s == 400.0
    clock.now_s += 500
    assert len(history.samples()) == 51


async def test_counters_that_begin_anew_are_no_negative_rate() -> None:
    """An engine that was built anew counts from 0, which is a rate of 0."""
    clock = SteppedClock()
    service = Service()
    history = LiveHistory([FakeModel("sim", service)], RecentRequests(clock=clock), clock=clock)
    service.counts = replace(_NOTHING, num_output_tokens=500)
    await history.sample()
    clock.now_s = 2.0
    service.counts = replace(_NOTHING, num_output_tokens=10)
    await history.sample()
    newest = history.newest()
    assert newest is not None
    assert newest.output_tokens_per_s == 0.0
