"""Driving a scheduler and an engine on one thread."""

from __future__ import annotations

import pytest

from engine.contract import StepPlan, StepResult
from fakes import make_engine, make_request
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.inline import InlineLoop
from scheduler.request import Admit, FinishReason, RequestOutput


def make_loop(depth: int, steps: list[int] | None = None) -> InlineLoop:
    engine = make_engine(depth=depth)

    def on_step(plan: StepPlan, result: StepResult) -> None:
        if steps is not None:
            steps.append(plan.step_id)

    return InlineLoop(Scheduler(engine.info, first_come()), engine, lambda: 0.0, on_step=on_step)


def offer(loop: InlineLoop, request_id: str, num_tokens: int) -> None:
    request = make_request(request_id, max_tokens=num_tokens)
    assert isinstance(loop.scheduler.offer(request, 0), Admit)


def run(loop: InlineLoop) -> list[RequestOutput]:
    outputs = loop.turn()
    while not loop.idle:
        outputs += loop.turn()
    return outputs


@pytest.mark.parametrize("depth", [1, 2])
def test_requests_run_to_their_end(depth: int) -> None:
    """Whatever the depth, every token comes, each step is seen once and in order, then it idles."""
    steps: list[int] = []
    loop = make_loop(depth, steps)
    assert loop.turn() == []
    assert loop.idle
    for number in (1, 5, 9):
        offer(loop, str(number), number)
    outputs = run(loop)
    for number in (1, 5, 9):
        tokens = [t for o in outputs if o.request_id == str(number) for t in o.token_ids]
        assert len(tokens) == number
    assert steps == list(range(len(steps)))
    assert loop.scheduler.snapshot().running == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_fault_ends_all_requests_and_the_loop_goes_on(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception out of the engine reaches the caller; what is offered after it runs."""
    loop = make_loop(depth)
    offer(loop, "lost", 20)
    for _ in range(4):
        loop.turn()

    def collect(handle: object) -> StepResult:
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(loop.engine, "collect", collect)
        with pytest.raises(RuntimeError, match="device is gone"):
            run(loop)
    assert loop.idle
    snapshot = loop.scheduler.snapshot()
    assert (snapshot.running, snapshot.queued, snapshot.free_blocks) == (0, 0, 32)
    offer(loop, "next", 3)
    ends = [o.finish_reason for o in run(loop) if o.request_id == "next"]
    assert ends == [None, None, FinishReason.LENGTH]
