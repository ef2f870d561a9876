"""How late an event loop is beside an engine's thread, at the gateway's switch interval."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from engine.contract import StepPlan
from fake_bench import RenewedEngine, make_bench
from scheduler.bench.drive import BenchError
from scheduler.bench.loop_lag import loop_lag
from scheduler.service import SWITCH_INTERVAL_S


class WatchedEngine(RenewedEngine):
    """Note at each launch how often threads take turns, or fail there."""

    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self.intervals_s: set[float] = set()
        self._breaks = breaks

    def launch(self, plan: StepPlan) -> object:
        self.intervals_s.add(sys.getswitchinterval())
        if self._breaks:
            raise RuntimeError("broken")
        return super().launch(plan)


@pytest.fixture
def before_s() -> Iterator[float]:
    """Begin with Python's own interval, whatever another test has left."""
    left_s = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield sys.getswitchinterval()
    sys.setswitchinterval(left_s)


def test_threads_take_turns_as_in_a_gateway(before_s: float) -> None:
    """The whole run has the gateway's interval, its samples say so, and then it is as before."""
    engine = WatchedEngine()
    part = loop_lag(make_bench(engine=engine))
    assert list(engine.intervals_s) == [pytest.approx(SWITCH_INTERVAL_S)]
    assert part.samples["switch_interval_s"] == SWITCH_INTERVAL_S
    assert sys.getswitchinterval() == before_s


def test_interval_is_put_back_after_a_failure(before_s: float) -> None:
    """A run that breaks leaves the process as it was."""
    with pytest.raises(BenchError, match="a request failed"):
        loop_lag(make_bench(engine=WatchedEngine(breaks=True)))
    assert sys.getswitchinterval() == before_s
