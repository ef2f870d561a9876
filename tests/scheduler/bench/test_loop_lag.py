"""How late an event loop is beside an engine's thread, at the gateway's switch interval."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import pytest

from engine.contract import EngineInfo, StepPlan, StepResult
from engine.demo import MODEL_DIR
from engine.models.hf_config import load_model_config
from fakes import make_engine
from scheduler.bench.drive import BenchError
from scheduler.bench.loop_lag import loop_lag
from scheduler.bench.roofline import Ceilings, ModelWork
from scheduler.bench.setup import Bench, Options
from scheduler.service import SWITCH_INTERVAL_S


class WatchedEngine:
    """Note at each launch how often threads take turns, or fail there; a new engine a round."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.intervals_s: set[float] = set()
        self._breaks = breaks
        self.reset()

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def launch(self, plan: StepPlan) -> object:
        self.intervals_s.add(sys.getswitchinterval())
        if self._breaks:
            raise RuntimeError("broken")
        return self._engine.launch(plan)

    def collect(self, handle: object) -> StepResult:
        return self._engine.collect(handle)

    def reset(self) -> None:
        self._engine = make_engine(max_model_len=128, num_blocks=128)

    def close(self) -> None:
        self._engine.close()


def make_bench(engine: WatchedEngine) -> Bench:
    return Bench(
        options=Options(rounds=1, scale=0.01),
        slug="tiny",
        uses_native=False,
        own_dtype="float32",
        engine=engine,
        peer=None,
        work=ModelWork(load_model_config(MODEL_DIR), 4),
        ceilings=Ceilings(1e9, 1e9),
        draw=random.Random(1),
    )


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
    part = loop_lag(make_bench(engine))
    assert engine.intervals_s == {SWITCH_INTERVAL_S}
    assert part.samples["switch_interval_s"] == SWITCH_INTERVAL_S
    assert sys.getswitchinterval() == before_s


def test_interval_is_put_back_after_a_failure(before_s: float) -> None:
    """A run that breaks leaves the process as it was."""
    with pytest.raises(BenchError, match="a request failed"):
        loop_lag(make_bench(WatchedEngine(breaks=True)))
    assert sys.getswitchinterval() == before_s
