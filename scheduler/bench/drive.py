"""Runs a workload through a scheduler and an engine and notes when everything happened."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from engine.contract import Engine, SamplingParams, StepPlan, StepResult
from engine.step_cost import StepFeatures
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.inline import InlineLoop
from scheduler.request import Admit, FinishReason, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Ask for `num_output_tokens` after a prompt, once `after_steps` steps have been run."""

    prompt: Sequence[int]
    num_output_tokens: int
    temperature: float = 0.0
    after_steps: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """Describe one step; `wall_s` is the time since the step before it came back.

    `num_draws` tokens were drawn.
    """

    features: StepFeatures
    num_draws: int
    wall_s: float

    @classmethod
    def of_plan(cls, plan: StepPlan, wall_s: float) -> Step:
        """Describe the step that a plan asked for."""
        num_draws = len(plan.decodes) + sum(piece.sample for piece in plan.slices)
        return cls(StepFeatures.of_plan(plan), num_draws, wall_s)

    @property
    def num_decodes(self) -> int:
        return self.features.num_decode_tokens

    @property
    def num_prefill_tokens(self) -> int:
        return self.features.num_prefill_tokens

    @property
    def num_context_tokens(self) -> int:
        """Count what the decodes attend to: all up to their own tokens."""
        return self.features.decode_context_tokens + self.num_decodes


@dataclass(slots=True)
class Run:
    """Hold what was measured; what is per request is in the order of the jobs.

    `gaps_s` are the times between the tokens of a request, all requests together.
    """

    wall_s: float = 0.0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def output_tokens_per_s(self) -> float:
        return self.num_output_tokens / self.wall_s

    def decode_steps(self, num_decodes: int) -> list[Step]:
        """Pick the steps that did nothing but decode so many rows."""
        return [s for s in self.steps if s.num_decodes == num_decodes and not s.num_prefill_tokens]


class BenchError(Exception):
    """Mend the options or the engine as the message says, in one line."""


class Driver:
    """Run jobs on one engine, with a KV cache that starts empty and lives as long as the driver.

    `loop` and `offer` are for who needs to look between the steps.
    """

    def __init__(self, engine: Engine, *, prefix_caching: bool = True) -> None:
        self._scheduler = Scheduler(
            engine.info, first_come(prefix_caching=prefix_caching, max_num_queued=1 << 62)
        )
        self._run = Run()
        self._step_started_s = 0.0
        self._num_requests = 0
        self.loop = InlineLoop(self._scheduler, engine, time.perf_counter, on_step=self._note_step)

    def run(self, jobs: Sequence[Job]) -> Run:
        """Run all jobs to their last token. Raises: `BenchError`: one of them failed."""
        run = self._run = Run(tokens=[[] for _ in jobs], ttft_s=[0.0] * len(jobs))
        pending = sorted(range(len(jobs)), key=lambda i: jobs[i].after_steps, reverse=True)
        live: dict[str, int] = {}
        offered_s: dict[int, float] = {}
        token_s: dict[int, float] = {}
        started_s = self._step_started_s = time.perf_counter()
        while pending or live:
            while pending and (not live or jobs[pending[-1]].after_steps <= len(run.steps)):
                index = pending.pop()
                offered_s[index] = time.perf_counter()
                live[self.offer(jobs[index])] = index
            for output in self.loop.turn():
                index, now = live[output.request_id], time.perf_counter()
                if index in token_s:
                    run.gaps_s.append(now - token_s[index])
                else:
                    run.ttft_s[index] = now - offered_s[index]
                token_s[index] = now
                run.tokens[index] += output.token_ids
                if output.finish_reason is not None:
                    del live[output.request_id]
                if output.finish_reason is FinishReason.ERROR:
                    raise BenchError(f"a request failed: {output.error}")
        run.wall_s = time.perf_counter() - started_s
        run.num_prompt_tokens = sum(len(job.prompt) for job in jobs)
        run.num_output_tokens = sum(map(len, run.tokens))
        return run

    def offer(self, job: Job) -> str:
        """Queue one job and return its request's id. Raises: `BenchError`: it does not fit."""
        request_id = str(self._num_requests)
        self._num_requests += 1
        now = time.perf_counter()
        params = SamplingParams(
            max_tokens=job.num_output_tokens,
            temperature=job.temperature,
            seed=self._num_requests,
            ignore_eos=True,
        )
        request = Request(
            request_id=request_id,
            tenant_id="bench",
            key_id="bench",
            prompt_token_ids=array("i", job.prompt),
            params=params,
            cache_salt=b"bench",
            arrival_s=now,
        )
        answer = self._scheduler.offer(request, now)
        if not isinstance(answer, Admit):
            raise BenchError(f"a request does not fit the engine: {answer.reason}")
        return request_id

    def cancel(self, request_id: str) -> None:
        """End a request that was offered."""
        self._scheduler.cancel(request_id, time.perf_counter())

    def _note_step(self, plan: StepPlan, result: StepResult) -> None:
        now = time.perf_counter()
        self._run.steps.append(Step.of_plan(plan, now - self._step_started_s))
        self._step_started_s = now


def percentile(values: Sequence[float], q: float) -> float:
    """Return the value that a share `q` of `values` does not exceed; in their unit."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def median_step_s(steps: Sequence[Step]) -> float:
    """Return the median time of `steps`, in seconds."""
    return median(step.wall_s for step in steps)
