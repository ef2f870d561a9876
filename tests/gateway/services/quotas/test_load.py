"""Windows that are loaded from a ledger to which rows come at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid4

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
from gateway.domain.limits import Sums
from gateway.domain.quota import Quota
from gateway.domain.usage import Outcome
from gateway.errors import CountersUnavailable
from gateway.services.quotas.service import Slotted
from tests.gateway.services.quotas.scripted import FakeLedger, Rig
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
            return Waiting(self.waiting)
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
    assert load == Load(limit, [0], (), [], [])


async def test_the_counters_learn_which_of_those_that_wait_are_in_the_sums(rig: Rig) -> None:
    """The others they add themselves."""
    counters = Listed(rig)
    booked, missing = uuid4(), uuid4()
    rig.ledger.rows[booked] = usage_row(request_id=booked)
    counters.waiting = [booked.hex, missing.hex]
    await rig.hold(HARD)
    [load] = counters.loaded
    assert (load.asked, load.booked) == ([booked.hex, missing.hex], [booked.hex])


async def test_sums_that_a_row_came_into_are_read_again() -> None:
    """Between asking for rows and asking for sums one may come: nobody knows on which side."""
    late = uuid4()
    ledger = _GrowingLedger(late)
    rig = Rig(ledger)
    counters = Listed(rig)
    counters.waiting = [late.hex]
    await rig.hold(HARD)
    [load] = counters.loaded
    assert (load.asked, load.booked) == ([late.hex], [late.hex])
    # Once for the first try, and twice around the sums of each of the other two.
    assert ledger.num_sums == 3


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


async def test_sums_that_a_voucher_came_into_are_read_again() -> None:
    """Nobody knows on which side of the sums it is."""
    lost = uuid4()
    ledger = _GrowingLedger(lost, Outcome.LOST, at=1)
    rig = Rig(ledger)
    counters = Listed(rig)
    await rig.hold(HARD)
    [load] = counters.loaded
    assert [id_ for id_, _, _ in load.vouched] == [lost.hex]
    assert ledger.num_sums == 2


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


class _GrowingLedger(FakeLedger):
    """A row comes while the sums are read the second time, or another."""

    def __init__(self, late: UUID, outcome: Outcome = Outcome.COMPLETED, at: int = 2) -> None:
        super().__init__()
        self.num_sums = 0
        self._late, self._outcome, self._at = late, outcome, at

    async def used(self, wanted: Sequence[Slotted]) -> Sequence[Sums]:
        self.num_sums += 1
        if self.num_sums == self._at:
            self.rows[self._late] = usage_row(request_id=self._late, outcome=self._outcome)
        return await super().used(wanted)
