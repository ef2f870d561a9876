"""Serves steps of known kinds, one kind after the other, and notes each: what `trace` looks at.

A full batch decodes contexts of about 1,024 tokens (64 on a CPU), then fewer and fewer of its rows
go on, and at last prompts of 2,048 tokens (256 on a CPU) are computed, each in one step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from engine.contract import Engine, StepPlan, StepResult
from scheduler.bench.borrowed_engine import BorrowedEngine
from scheduler.bench.drive import Driver, Job, Step
from scheduler.bench.setup import Bench

_CONTEXT_TOKENS_GPU, _CONTEXT_TOKENS = 1024, 64
_PREFILL_TOKENS_GPU, _PREFILL_TOKENS, _NUM_PREFILLS = 2048, 256, 6
_NUM_STEPS = 19
# Where a step begins in a CPU's profile.
MARK = "(step begins)"


@dataclass(frozen=True, slots=True)
class Case:
    """Name one kind of step: it decodes so many rows, or computes so many tokens of a prompt."""

    name: str
    num_decodes: int = 0
    num_prefill_tokens: int = 0

    def has(self, step: Step) -> bool:
        return (step.num_decodes, step.num_prefill_tokens) == (
            self.num_decodes,
            self.num_prefill_tokens,
        )


@dataclass(slots=True)
class WatchedStep:
    """Hold a step, the case that it was served for, and how long it took; 0 s until it is back.

    That is the time since the step before came back, or since its own launch, if that was later.
    """

    plan: Step
    case: Case | None = None
    launched_s: float = 0.0
    wall_s: float = 0.0


class WatchedEngine(BorrowedEngine):
    """Note each step; and mark in a profile where one begins, where no kernel does.

    `case`: what is being served. `clock` gives seconds.
    """

    def __init__(
        self, engine: Engine, *, marks: bool, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        from torch.profiler import record_function

        super().__init__(engine)
        self.case: Case | None = None
        self.steps: list[WatchedStep] = []
        self._mark = record_function if marks else nullcontext
        self._clock = clock
        self._back_s = 0.0

    def launch(self, plan: StepPlan) -> object:
        step = WatchedStep(Step.of_plan(plan, 0.0), self.case, self._clock())
        self.steps.append(step)
        with self._mark(MARK):
            pass
        return step, super().launch(plan)

    def collect(self, handle: object) -> StepResult:
        assert isinstance(handle, tuple), "collect takes what launch returned"
        step, handle = handle
        result = super().collect(handle)
        now = self._clock()
        step.wall_s = now - max(self._back_s, step.launched_s)
        self._back_s = now
        return result


def serve(bench: Bench, profiler: AbstractContextManager[object]) -> list[WatchedStep]:
    """Decode the largest batch, then those below it, then compute prompts, under a profiler."""
    bench.engine.reset()
    engine = WatchedEngine(bench.engine, marks=not bench.options.on_gpu)
    driver = Driver(engine)
    *decodes, prefill = list_cases(bench)
    request_ids = _fill(bench, driver, decodes)
    _wait(bench)
    engine.steps.clear()
    with profiler:
        for case in decodes:
            engine.case = case
            while len(request_ids) > case.num_decodes:
                driver.cancel(request_ids.pop())
            for _ in range(_NUM_STEPS):
                driver.loop.turn()
        while request_ids:
            driver.cancel(request_ids.pop())
        while not driver.loop.idle:
            driver.loop.turn()
        engine.case = prefill
        for _ in range(_NUM_PREFILLS):
            prompt = bench.prompt(prefill.num_prefill_tokens)
            # The decode that follows ends the window of the prompt's step.
            driver.run([Job(prompt=prompt, num_output_tokens=2)])
        _wait(bench)
    return engine.steps


def list_cases(bench: Bench) -> list[Case]:
    """List what is traced: steps that decode, the largest batch first; those of a prompt last."""
    info = bench.info
    on_gpu = bench.options.on_gpu
    wanted = bench.options.batches or ((1, 32, 256) if on_gpu else (1, 8))
    batches = sorted({min(batch, info.max_num_seqs) for batch in wanted}, reverse=True)
    num_tokens = _PREFILL_TOKENS_GPU if on_gpu else _PREFILL_TOKENS
    num_tokens = min(num_tokens, info.max_num_batched_tokens, info.max_model_len - 2)
    decodes = [Case(f"b{batch}", num_decodes=batch) for batch in batches]
    return [*decodes, Case("prefill", num_prefill_tokens=num_tokens)]


def _fill(bench: Bench, driver: Driver, decodes: Sequence[Case]) -> list[str]:
    """Bring the engine to where it decodes the largest batch; returns its requests' ids."""
    info, batch = bench.info, decodes[0].num_decodes
    wanted = _CONTEXT_TOKENS_GPU if bench.options.on_gpu else _CONTEXT_TOKENS
    # While the last prompts are computed, the first rows go on.
    num_prefill_steps = batch * wanted // max(info.max_num_batched_tokens - batch, 1) + 1
    num_output_tokens = 2 * num_prefill_steps + (len(decodes) + 1) * _NUM_STEPS
    room = info.num_blocks // batch * info.block_size
    longest = min(info.max_model_len, room) - num_output_tokens
    num_tokens = max(1, min(wanted - num_prefill_steps // 2, longest))
    request_ids = [
        driver.offer(Job(prompt=bench.prompt(num_tokens), num_output_tokens=num_output_tokens))
        for _ in range(batch)
    ]
    # Every row has been prefilled once each has had a token.
    seen: set[str] = set()
    while len(seen) < batch:
        seen |= {output.request_id for output in driver.loop.turn()}
    return request_ids


def _wait(bench: Bench) -> None:
    """Let the device finish what it was given."""
    import torch

    if bench.options.on_gpu:
        torch.cuda.synchronize(bench.options.device)
