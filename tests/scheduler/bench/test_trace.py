"""Tables of kernels: which steps they are of, and what becomes of a profile."""

from __future__ import annotations

from array import array
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from engine.contract import (
    DecodeRows,
    NewSequence,
    SamplingParams,
    SequenceSlice,
    StepPlan,
)
from engine.step_cost import StepFeatures
from fake_bench import RenewedEngine, make_bench
from fakes import make_engine
from scheduler.bench.drive import BenchError, Step
from scheduler.bench.kernel_table import FIRST_KERNEL, Launch
from scheduler.bench.trace import read_launches, tabulate_cases
from scheduler.bench.watched_steps import Case, WatchedEngine, WatchedStep, list_cases, serve

FOUR, ONE, PROMPT = list_cases(make_bench(batches=(1, 4)))
# Five steps of four rows and five of one; then prompts, each with a step that decodes behind it.
SERVED = [(FOUR, FOUR)] * 5 + [(ONE, ONE)] * 5 + [(PROMPT, PROMPT), (PROMPT, ONE)] * 4


def watched(case: Case, like: Case) -> WatchedStep:
    features = StepFeatures(
        num_decode_tokens=like.num_decodes,
        decode_context_tokens=100 * like.num_decodes,
        num_prefill_tokens=like.num_prefill_tokens,
    )
    step = Step(features, like.num_decodes or 1, 0.0)
    # What decodes behind a prompt takes long.
    wall_s = 0.001 * features.num_tokens if case == like else 0.5
    return WatchedStep(step, case, wall_s=wall_s)


def launches_of(num_steps: int) -> list[Launch]:
    """Let step i begin at 100 i µs with the first kernel, and have a product that takes i µs."""
    return [
        launch
        for i in range(num_steps)
        for launch in (Launch(FIRST_KERNEL, 100.0 * i, 2.0), Launch("gemm", 100.0 * i + 2, i))
    ]


def test_cases_are_what_was_asked_for() -> None:
    """The largest batch comes first, none is larger than the engine's, and prompts come last."""
    cases = list_cases(make_bench(batches=(1, 4, 300)))
    assert cases == [Case("b4", 4), Case("b1", 1), Case("prefill", num_prefill_tokens=64)]
    assert [case.name for case in list_cases(make_bench("cuda"))] == ["b4", "b1", "prefill"]


@pytest.mark.parametrize("lost", [0, 1, 4])
def test_tables_are_of_the_steps_that_they_name(lost: int) -> None:
    """What a profile lost at its beginning moves no window to another step.

    Of each kind the first two steps that it saw and the last are left out.
    """
    steps = [watched(case, like) for case, like in SERVED]
    part = tabulate_cases(
        make_bench("cuda", batches=(1, 4)), steps, steps, launches_of(len(steps))[lost:]
    )
    four, one, prompts = (part.samples[name] for name in ("b4", "b1", "prefill"))
    # Steps 0 to 4, of which 2 and 3 are left; with what is lost, fewer.
    assert four["num_steps"] == 2 - (lost + 1) // 2
    # Steps 5 to 9; what decodes behind a prompt is none of them.
    assert (one["num_steps"], one["num_tokens"], one["num_context_tokens"]) == (2, 1, 100)
    assert one["plain_step_ms"] == 1
    assert {row["what"]: row["us"] for row in one["rows"]} == {FIRST_KERNEL: 2, "gemm": 7.5}
    assert part.figures["trace_tiny_b1_step_us"].value == 100
    assert part.figures["trace_tiny_b1_idle_share"].value == pytest.approx((98 - 7.5) / 100)
    assert part.figures["trace_tiny_b1_launches"].value == 2
    # Prompts are steps 10, 12, 14 and 16.
    assert (prompts["num_steps"], prompts["num_tokens"], prompts["plain_step_ms"]) == (1, 64, 64)
    assert {row["what"]: row["us"] for row in prompts["rows"]} == {FIRST_KERNEL: 2, "gemm": 14}
    assert [row.case for row in part.rows if not row.case.startswith(" ")] == [
        name for name, sample in part.samples.items() if sample["num_steps"]
    ]


def test_rates_are_of_what_the_step_had_to_do() -> None:
    """On a GPU rows have rates, from the shapes of the model and of the step."""
    steps = [watched(case, like) for case, like in SERVED]
    bench = make_bench("cuda", batches=(1, 4))
    part = tabulate_cases(bench, steps, steps, launches_of(len(steps)))
    for name, num_tokens in (("b4", 4), ("b1", 1), ("prefill", 64)):
        row = next(row for row in part.samples[name]["rows"] if row["what"] == FIRST_KERNEL)
        size_bytes = 2 * num_tokens * bench.work.config.hidden_size * bench.work.itemsize
        assert row["gb_per_s"] == pytest.approx(size_bytes / 2e-6 / 1e9, rel=1e-3)


def test_a_profile_without_steps_is_said() -> None:
    """A profiler that sees nothing is one line, and no table of nothing."""
    steps = [watched(case, like) for case, like in SERVED]
    with pytest.raises(BenchError, match="of 1 launches"):
        tabulate_cases(make_bench("cuda"), steps, steps, [Launch("gemm", 0.0, 1.0)])


@pytest.mark.parametrize("depth", [1, 2])
def test_steps_are_served_kind_by_kind(depth: int) -> None:
    """A full batch decodes, then some of its rows, then prompts are computed, a step each."""
    bench = make_bench(engine=RenewedEngine(depth=depth), batches=(1, 4))
    steps = serve(bench, nullcontext())
    served = [(step.case, step.plan) for step in steps]
    assert [case for case, _ in served[:38]] == [FOUR] * 19 + [ONE] * 19
    assert all(case is not None and case.has(step) for case, step in served[:38])
    prompts = [step for case, step in served[38:] if case == PROMPT and PROMPT.has(step)]
    behind = [step for case, step in served[38:] if case == PROMPT and ONE.has(step)]
    assert len(prompts) == len(behind) == 6
    assert all(step.num_draws == 1 for step in prompts)
    # Nothing was in flight at the end, and each took some time.
    assert all(step.wall_s > 0 for step in steps)
    # Contexts are near those that were wanted.
    assert 55 * 4 < served[10][1].num_context_tokens < 80 * 4


def test_time_of_a_step_begins_with_it() -> None:
    """A step that waited for the one before counts from then, one after a pause from its launch."""
    times_s = iter([1.0, 2.0, 5.0, 6.5, 100.0, 103.0])
    engine = WatchedEngine(make_engine(depth=2), marks=False, clock=lambda: next(times_s))
    sequence = NewSequence(0, "a", array("i", [1]), 1, 0, (), SamplingParams(max_tokens=3))
    begin = StepPlan(0, admitted=(sequence,), slices=(SequenceSlice(0, 0, 1, (0,), True),))
    engine.case = PROMPT
    handles = [engine.launch(begin), engine.launch(StepPlan(1, decodes=decode_at(1)))]
    for handle in handles:
        engine.collect(handle)
    engine.case = ONE
    engine.collect(engine.launch(StepPlan(2, decodes=decode_at(2))))
    assert [step.wall_s for step in engine.steps] == [4.0, 1.5, 3.0]
    assert [step.case for step in engine.steps] == [PROMPT, PROMPT, ONE]


def decode_at(position: int) -> DecodeRows:
    rows = DecodeRows()
    rows.append(0, position)
    return rows


def test_events_of_the_device_alone_are_launches() -> None:
    """Calls of the host, and operators that another called, are left out."""

    def event(name: str, device: str, *, parent: Any = None) -> SimpleNamespace:
        span = SimpleNamespace(start=1.0, elapsed_us=lambda: 2.5)
        return SimpleNamespace(
            name=name,
            device_type=SimpleNamespace(name=device),
            cpu_parent=parent,
            time_range=span,
        )

    outer = event("outer", "CPU")
    events = [event("kernel", "CUDA"), outer, event("inner", "CPU", parent=outer)]
    assert read_launches(events, "CUDA") == [Launch("kernel", 1.0, 2.5)]
    assert read_launches(events, "CPU") == [Launch("outer", 1.0, 2.5)]
