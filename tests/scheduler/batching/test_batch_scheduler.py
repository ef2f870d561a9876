"""One batch from its first prompt to its last token; the simulated engine checks each plan."""

from __future__ import annotations

import pytest

from batch_run import VirtualRun
from engine.contract import StepResult
from engine.step_cost import LinearCost, StepCost
from fakes import expected_tokens, make_engine, make_request
from scheduler.batching.baselines import BASELINES, BatchingConfig, make_baseline
from scheduler.request import Admit, FinishReason, Reject, RejectCode

# A second for each token, so that virtual time counts what was computed.
PER_TOKEN = StepCost("tokens", small=LinearCost(0.0, 1.0), large=LinearCost(0.0, 1.0))
CONFIG = BatchingConfig(batch_size=4, timeout_s=1.0, window_size=8, max_batch_tokens=256)


def make_run(name: str, *, config: BatchingConfig = CONFIG, **sizes: int) -> VirtualRun:
    engine = make_engine(
        cost=PER_TOKEN,
        **{"max_num_seqs": 8, "num_blocks": 128, "max_num_batched_tokens": 256, **sizes},
    )
    return VirtualRun(make_baseline(name, engine.info, config), engine)


def count_padding(run: VirtualRun) -> int:
    return run.scheduler.snapshot().num_padding_tokens


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [4, 7, 256])
def test_tokens_are_those_of_a_run_alone(name: str, depth: int, budget: int) -> None:
    """Whatever it is batched with, padded to and cut into, a request draws its own tokens."""
    engine = make_engine(
        vocab_size=12,
        max_num_seqs=8,
        max_num_batched_tokens=budget,
        eos_token_ids=frozenset({0}),
        depth=depth,
    )
    run = VirtualRun(make_baseline(name, engine.info, CONFIG), engine)
    requests = [
        make_request(str(n), prompt=[n + 1] * (1 + 3 * n % 11), max_tokens=1 + 5 * n % 17, seed=n)
        for n in range(10)
    ]
    for request in requests:
        run.offer_at(request)
    run.finish()
    for request in requests:
        tokens, reason = expected_tokens(request, engine.info)
        assert run.tokens[request.request_id] == tokens
        assert run.last[request.request_id].finish_reason is reason
    snapshot = run.scheduler.snapshot()
    assert snapshot.free_blocks == snapshot.total_blocks
    assert snapshot.num_finished == len(requests)


def test_static_pays_for_no_padding() -> None:
    """A row that has ended keeps its place and computes nothing: only real tokens are paid."""
    run = make_run("static")
    for number, (prompt, output) in enumerate([(2, 3), (7, 9), (4, 1), (5, 6)]):
        run.offer_at(make_request(str(number), prompt=[1] * prompt, max_tokens=output))
    run.finish()
    # The token drawn last is never computed.
    assert run.clock.now == 18 + 2 + 8 + 0 + 5
    assert count_padding(run) == 0
    assert {len(plan.decodes) for plan, _ in run.steps} == {0, 3, 2, 1}


def test_padded_pays_for_a_rectangle() -> None:
    """Each row costs as much as the longest prompt and the longest output of the batch."""
    run = make_run("padded")
    for number, (prompt, output) in enumerate([(2, 3), (7, 9), (4, 1), (5, 6)]):
        run.offer_at(make_request(str(number), prompt=[1] * prompt, max_tokens=output))
    run.finish()
    assert run.clock.now == 4 * (7 + 8)
    assert count_padding(run) == 4 * (7 + 8) - (18 + 15)
    assert {len(plan.decodes) for plan, _ in run.steps} == {0, 4}


@pytest.mark.parametrize("name", BASELINES)
def test_prompts_beyond_a_step_take_several(name: str) -> None:
    """A batch's prompts are cut at the engine's budget, and nobody decodes before all are done."""
    run = make_run(name, max_num_batched_tokens=8)
    for number in range(4):
        run.offer_at(make_request(str(number), prompt=[1] * 10, max_tokens=4))
    run.finish()
    kinds = [bool(plan.slices) for plan, _ in run.steps]
    assert kinds == [True] * 5 + [False] * 3


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", ["static", "padded"])
def test_cancelled_row_keeps_its_place(name: str, depth: int) -> None:
    """A cancelled row's blocks come back with those of the batch, and nobody takes its place."""
    run = make_run(name, depth=depth)
    for number in range(5):
        run.offer_at(make_request(str(number), max_tokens=6))
    while len(run.tokens["1"]) < 2:
        run.turn()
    run.cancel("1")
    run.turn()
    snapshot = run.scheduler.snapshot()
    assert (snapshot.running, snapshot.idle_rows, snapshot.queued) == (3, 1, 1)
    run.finish()
    assert run.batches == [["0", "1", "2", "3"], ["4"]]
    assert run.last["1"].finish_reason is FinishReason.CANCELLED
    assert run.scheduler.snapshot().free_blocks == 128


def test_batch_whose_rows_are_all_cancelled_is_over() -> None:
    """Nothing is computed for nobody: the next batch begins at once."""
    run = make_run("padded")
    for number in range(4):
        run.offer_at(make_request(str(number), max_tokens=30))
    run.turn()
    run.turn()
    for number in range(4):
        run.cancel(str(number))
    num_steps = len(run.steps)
    snapshot = run.scheduler.snapshot()
    assert (snapshot.running, snapshot.idle_rows, snapshot.free_blocks) == (0, 0, 128)
    run.offer_at(make_request("next", max_tokens=2, arrival_s=run.clock.now))
    run.finish()
    assert len(run.steps) == num_steps + 2
    assert run.steps[num_steps][0].released == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["static", "padded"])
def test_failed_row_ends_and_the_others_go_on(name: str) -> None:
    """A row that the engine gave up on is not computed again, not even as padding."""
    run = make_run(name)
    requests = [make_request(str(n), max_tokens=5, seed=n) for n in range(4)]
    scheduler = run.scheduler
    for request in requests:
        scheduler.offer(request, 0)
    plan = scheduler.plan(0)
    assert plan is not None
    result = run.loop.engine.collect(run.loop.engine.launch(plan))
    assert isinstance(result, StepResult)
    failed = StepResult(
        plan.step_id, result.slots[1:], result.token_ids[1:], 1.0, failed={0: "not finite"}
    )
    run.take(scheduler.report(failed, 0))
    assert run.last["0"].finish_reason is FinishReason.ERROR
    plan = scheduler.plan(0)
    assert plan is not None
    assert list(plan.decodes.slots) == [1, 2, 3]


def test_reset_ends_everyone() -> None:
    """After a fault of the engine every request ends, and the scheduler can be used again."""
    run = make_run("static")
    for number in range(6):
        run.offer_at(make_request(str(number), max_tokens=6))
    run.turn()
    run.take(run.scheduler.reset("the step failed", run.clock.now))
    run.loop.engine.reset()
    assert {output.finish_reason for output in run.last.values()} == {FinishReason.ERROR}
    assert len(run.last) == 6
    again = make_request("again", max_tokens=6, arrival_s=run.clock.now)
    run.offer_at(again)
    run.finish()
    assert run.tokens["again"] == expected_tokens(again, run.scheduler.info)[0]


def test_refusals_are_those_of_the_scheduler() -> None:
    """What can never fit is refused by its size, what comes to a full queue by our load."""
    engine = make_engine(max_model_len=16, num_blocks=3)
    config = BatchingConfig(batch_size=4, timeout_s=9, max_num_queued=2)
    scheduler = make_baseline("static", engine.info, config)
    too_long = scheduler.offer(make_request("a", prompt=[1] * 10, max_tokens=7), 0)
    assert isinstance(too_long, Reject)
    assert too_long.code is RejectCode.CONTEXT_LENGTH_EXCEEDED
    no_room = scheduler.offer(make_request("b", prompt=[1] * 12, max_tokens=4), 0)
    assert isinstance(no_room, Reject)
    assert isinstance(scheduler.offer(make_request("c"), 0), Admit)
    assert isinstance(scheduler.offer(make_request("d"), 0), Admit)
    full = scheduler.offer(make_request("e"), 0)
    assert isinstance(full, Reject)
    assert full.code is RejectCode.OVERLOADED
    assert scheduler.snapshot().num_rejected == 3


def test_due_time_is_known_only_while_nothing_runs() -> None:
    """A loop can sleep until a batch is due; while one runs its end decides."""
    run = make_run("static")
    assert run.scheduler.due_s is None
    assert isinstance(run.scheduler.offer(make_request("a", arrival_s=3.0), 3.0), Admit)
    assert run.scheduler.due_s == 4.0
    assert run.scheduler.plan(3.9) is None
    assert run.scheduler.plan(4.0) is not None
    assert run.scheduler.due_s is None
