"""The compiled loops over rows and Python's own: the same plans and outputs, to the last digit."""

from __future__ import annotations

import random
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.contract import SamplingParams, StepPlan
from engine.native.compiler import find_compiler
from engine.native.row_library import build_rows, load_rows
from engine.simulated import SimulatedEngine
from engine.step_cost import load_profile
from scheduler.config import SchedulerConfig
from scheduler.core import Scheduler
from scheduler.learn import StepModel
from scheduler.request import Admit, Band, Request, Slo
from scheduler.running import RowKernel

_SLOS = (Slo(), Slo(), Slo(tpot_s=0.02, max_gap_s=0.1), Slo(ttft_s=9.0, tpot_s=0.05))


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    if find_compiler() is None:
        pytest.skip("no C++ compiler is here")
    build_rows()
    assert load_rows() is not None


class History:
    """One scheduler under random use: two that draw the same seed are used alike."""

    def __init__(self, seed: int, *, compiled: bool) -> None:
        self.draw = random.Random(seed)
        cost = load_profile("cpu-demo")
        self.engine = SimulatedEngine(
            cost,
            vocab_size=64,
            max_model_len=256,
            max_num_seqs=self.draw.choice((8, 32)),
            max_num_batched_tokens=256,
            num_blocks=self.draw.choice((64, 256)),
            block_size=8,
            eos_token_ids=frozenset({0}),
            depth=self.draw.choice((1, 2)),
        )
        config = SchedulerConfig()
        unit = self.draw.choice(("time", "time", "tokens"))
        config = replace(config, fairness=replace(config.fairness, unit=unit))
        self.scheduler = Scheduler(
            self.engine.info, config, step_model=StepModel(cost), compiled=compiled
        )
        self.has_own_ends = self.draw.random() < 0.2
        self.now, self.num_requests = 0.0, 0
        self.live: list[str] = []
        self.seen: list[object] = []
        self.handles: deque[object] = deque()

    def step(self) -> None:
        for _ in range(self.draw.choice((0, 0, 1, 2, 6))):
            self.offer()
        if self.live and self.draw.random() < 0.1:
            self.scheduler.cancel(self.draw.choice(self.live), self.now)
        plan = self.scheduler.plan(self.now)
        self.note(plan)
        if plan is not None:
            self.handles.append(self.engine.launch(plan))
        if self.handles and (plan is None or len(self.handles) == self.engine.info.depth):
            result = self.engine.collect(self.handles.popleft())
            self.now += result.step_s
            outputs = list(self.scheduler.report(result, self.now))
            ended = {o.request_id for o in outputs if o.finish_reason is not None}
            self.live = [name for name in self.live if name not in ended]
            self.seen.append(sorted(map(repr, outputs)))

    def note(self, plan: StepPlan | None) -> None:
        if plan is not None:
            rows = plan.decodes
            self.seen.append((rows.slots, rows.positions, rows.new_block_ids, plan.slices))
            self.seen.append((plan.released, plan.preempted, len(plan.admitted)))

    def offer(self) -> None:
        draw, tenant = self.draw, self.draw.randrange(6)
        self.num_requests += 1
        request = Request(
            request_id=str(self.num_requests),
            tenant_id=f"t{tenant}",
            key_id=f"k{draw.randrange(2)}",
            prompt_token_ids=array("i", draw.choices(range(1, 64), k=draw.choice((5, 40, 100)))),
            params=SamplingParams(
                max_tokens=draw.choice((3, 80, 150)),
                seed=draw.randrange(9),
                ignore_eos=draw.random() < 0.8,
                stop_token_ids=(5,) if self.has_own_ends else (),
            ),
            cache_salt=b"salt",
            arrival_s=self.now,
            weight=(1.0, 2.0, 0.5)[tenant % 3],
            organisation_id=("", "", "acme")[tenant % 3],
            band=draw.choice((*[Band.DEFAULT] * 5, Band.PRIORITY, Band.BATCH)),
            slo=draw.choice(_SLOS),
        )
        if isinstance(self.scheduler.offer(request, self.now), Admit):
            self.live.append(request.request_id)


class Calls:
    """Count the calls of a method that did its work."""

    def __init__(self, method: Callable[..., object]) -> None:
        self.method, self.num = method, 0

    def __get__(self, kernel: RowKernel, kind: type[RowKernel]) -> Callable[..., object]:
        def call(*args: object, **named: object) -> object:
            found = self.method(kernel, *args, **named)
            self.num += found is not None
            return found

        return call


def test_compiled_loops_agree_with_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens, both schedulers plan the same rows and report the same tokens."""
    pick, take = Calls(RowKernel.pick), Calls(RowKernel.take)
    monkeypatch.setattr(RowKernel, "pick", pick)
    monkeypatch.setattr(RowKernel, "take", take)
    for seed in range(8):
        histories = [History(seed, compiled=compiled) for compiled in (True, False)]
        for _ in range(100):
            for history in histories:
                history.step()
            assert histories[0].seen == histories[1].seen, seed
            for history in histories:
                history.seen.clear()
        shares = [history.scheduler.state(history.now) for history in histories]
        assert shares[0] == shares[1], seed
    assert min(pick.num, take.num) > 100


def test_python_does_it_where_nothing_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A scheduler without the library has no kernel and serves all the same."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("empty")))
    load_rows.cache_clear()
    try:
        history = History(3, compiled=True)
        assert history.scheduler._running.kernel is None
        for _ in range(100):
            history.step()
        assert history.scheduler.snapshot().num_output_tokens > 100
    finally:
        load_rows.cache_clear()
