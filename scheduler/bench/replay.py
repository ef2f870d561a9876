"""Runs requests that come by the clock, whether the scheduler keeps up or not."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.contract import Engine, SamplingParams
from scheduler.bench.drive import BenchError
from scheduler.inline import InlineLoop, Planner
from scheduler.request import Admit, FinishReason, Reject, Request, RequestOutput

_NAP_S = 0.0005


class Server(Planner, Protocol):
    """Take requests in besides planning steps for them, as `scheduler.core.Scheduler` does."""

    def offer(self, request: Request, now: float) -> Admit | Reject: ...


@dataclass(frozen=True, slots=True)
class Coming:
    """Describe a request that comes `at_s` seconds after the start and is as long as it says."""

    at_s: float
    prompt: array[int]
    num_output_tokens: int


@dataclass(slots=True)
class Journey:
    """Follow one request; times are in seconds, from when it came."""

    came_s: float
    last_s: float = 0.0
    ttft_s: float = 0.0
    latency_s: float = 0.0
    max_gap_s: float = 0.0
    num_output_tokens: int = 0

    @property
    def latency_per_token_s(self) -> float:
        """Divide the time to the last token by the number of tokens (Orca, OSDI 2022)."""
        return self.latency_s / self.num_output_tokens

    def take(self, num_tokens: int, now: float) -> None:
        if self.num_output_tokens:
            self.max_gap_s = max(self.max_gap_s, now - self.last_s)
        else:
            self.ttft_s = now - self.came_s
        self.num_output_tokens += num_tokens
        self.last_s = now
        self.latency_s = now - self.came_s


@dataclass(slots=True)
class Replay:
    """Hold what was measured, up to the last token; `journeys` are in the order of arrival."""

    wall_s: float = 0.0
    num_steps: int = 0
    journeys: list[Journey] = field(default_factory=list)

    @property
    def output_tokens_per_s(self) -> float:
        return sum(j.num_output_tokens for j in self.journeys) / self.wall_s


def replay(server: Server, engine: Engine, requests: Sequence[Coming]) -> Replay:
    """Offer each request when it comes and run all to their last tokens.

    A request that comes during a step is offered after it, and its waiting counts.
    Raises: `BenchError`: one was refused, or failed.
    """
    result = Replay()
    live: dict[str, Journey] = {}
    coming = deque(enumerate(requests))
    started_s = time.perf_counter()

    def note_step(*_: object) -> None:
        result.num_steps += 1

    loop = InlineLoop(server, engine, time.perf_counter, on_step=note_step)
    while coming or live:
        elapsed_s = time.perf_counter() - started_s
        while coming and coming[0][1].at_s <= elapsed_s:
            index, request = coming.popleft()
            journey = live[str(index)] = Journey(started_s + request.at_s)
            result.journeys.append(journey)
            _offer(server, str(index), request, journey.came_s)
        outputs = loop.turn()
        now = time.perf_counter()
        for output in outputs:
            _take(live, output, now)
        if loop.idle:
            # Nobody is there, or a batch is still being gathered.
            time.sleep(_NAP_S)
    result.wall_s = time.perf_counter() - started_s
    return result


def _offer(server: Server, request_id: str, coming: Coming, arrival_s: float) -> None:
    request = Request(
        request_id=request_id,
        tenant_id="bench",
        key_id="bench",
        prompt_token_ids=coming.prompt,
        params=SamplingParams(
            max_tokens=coming.num_output_tokens, temperature=0.0, ignore_eos=True
        ),
        cache_salt=b"bench",
        arrival_s=arrival_s,
    )
    answer = server.offer(request, time.perf_counter())
    if not isinstance(answer, Admit):
        raise BenchError(f"a request was refused: {answer.reason}")


def _take(live: dict[str, Journey], output: RequestOutput, now: float) -> None:
    live[output.request_id].take(len(output.token_ids), now)
    if output.finish_reason is FinishReason.LENGTH:
        del live[output.request_id]
    elif output.finish_reason is not None:
        raise BenchError(f"a request ended before its time: {output.error or output.finish_reason}")
