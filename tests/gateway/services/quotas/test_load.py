"""Windows that are loaded from a ledger to which rows come at the same time."""

from __future__ import annotations

from uuid import uuid4

import pytest

from gateway.domain.counters import (
    Answer,
    Building,
    Done,
    Held,
    Load,
    Reserve,
    Unknown,
    Waiting,
)
from gateway.domain.quota import Quota
from gateway.domain.usage import Outcome
from gateway.errors import CountersUnavailable
from tests.gateway.services.quotas.scripted import Rig
from tests.gateway.usage_rows import usage_row

pytestmark = pytest.mark.anyio

HARD = Quota(daily_tokens=1000)


class Listed:
    """What the counters are told of one window; `waiting` are the requests that they list."""

    def __init__(self, rig: Rig) -> None:
        self.waiting: list[str] = []
        self.loaded: list[Load] = []
        rig.counters.answers[Reserve] = lambda op: (
            Held(rig.counters.now_us) if self.loaded else Unknown()
        )
        rig.counters.answers[Load] = self._load

    def _load(self, op: Load) -> Answer:
        if set(self.waiting) - set(op.asked):
            return Waiting(self.waiting, 5 + len(op.asked))
        self.loaded.append(op)
        return Done()


@pytest.fixture
async def rig() -> Rig:
    """Build a rig inside the test's loop."""
    return Rig()


async def test_a_window_is_loaded_once_and_then_asked_again(rig: Rig) -> None:
    """With what the ledger sums, and nothing that waits."""
    counters = Listed(rig)
    lease, _ = await rig.hold(HARD)
    [load] = counters.loaded
    [limit] = lease.limits.limits
    assert load == Load(limit, [0], (), [], [], 0)


async def test_the_counters_learn_which_of_those_that_wait_are_in_the_sums(rig: Rig) -> None:
    """The others they add themselves."""
    counters = Listed(rig)
    booked, missing = uuid4(), uuid4()
    rig.ledger.rows[booked] = usage_row(request_id=booked)
    counters.waiting = [booked.hex, missing.hex]
    await rig.hold(HARD)
    [load] = counters.loaded
    assert (load.asked, load.booked) == ([booked.hex, missing.hex], [(booked.hex, 120)])
    assert load.since_us == 5


async def test_what_is_listed_later_does_not_move_the_first_time(rig: Rig) -> None:
    """What began since then cannot be among the sums that were read first."""
    asked: list[Load] = []
    rig.counters.answers[Reserve] = lambda op: Held(1) if len(asked) > 2 else Unknown()

    def load(op: Load) -> Answer:
        asked.append(op)
        return Done() if len(asked) > 2 else Waiting([uuid4().hex], 10 * len(asked))

    rig.counters.answers[Load] = load
    await rig.hold(HARD)
    assert [op.since_us for op in asked] == [0, 10, 10]


async def test_the_counters_learn_what_of_the_sums_may_be_held_still(rig: Rig) -> None:
    """Rows of lost requests: one that ended by the counters too is yet to have its own row."""
    counters = Listed(rig)
    lost, ended = uuid4(), uuid4()
    for id_ in (lost, ended):
        rig.ledger.rows[id_] = usage_row(request_id=id_, outcome=Outcome.LOST)
    counters.waiting = [ended.hex]
    lease, _ = await rig.hold(HARD)
    [load] = counters.loaded
    [start_s] = lease.limits.limits[0].slots()
    assert load.vouched == [(lost.hex, start_s, 120), (ended.hex, start_s, 120)]
    assert load.booked == []


async def test_counters_that_build_are_not_loaded(rig: Rig) -> None:
    """The refusal says when to return."""
    rig.counters.answers[Reserve] = lambda op: Unknown()
    rig.counters.answers[Load] = lambda op: Building(2.5)
    with pytest.raises(CountersUnavailable) as refused:
        await rig.hold(HARD)
    assert refused.value.retry_after_s == 2.5


async def test_a_load_that_never_ends_is_given_up(rig: Rig) -> None:
    """Where requests settle all the time whoever needs the window is refused, and may return."""
    rig.counters.answers[Reserve] = lambda op: Unknown()
    rig.counters.answers[Load] = lambda op: Waiting([uuid4().hex])
    with pytest.raises(CountersUnavailable) as refused:
        await rig.hold(HARD)
    assert refused.value.retry_after_s
