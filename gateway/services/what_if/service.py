"""Questions of what would have been: one replayed at a time, the others in a line.

A replay is a process of its own that gives way to all others, with a bound on its memory, on its
processor time and on how long it may take in all; what it had found by then is kept. A question
and its answer are kept for as long as there are not many newer ones. Who leaves, leaves it running:
the page shows it to whoever comes back.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol
from uuid import uuid4

import msgspec

from engine.contract import EngineInfo
from gateway.domain.past_request import PastRequest
from gateway.errors import GatewayError, InvalidRequest, ModelNotFound, NotFound, Overloaded
from gateway.ports import Clock, PastRequestStore
from gateway.services.admin.scheduler_config import plain
from gateway.services.admin.tenants import TenantService
from gateway.services.what_if.question import (
    MAX_MINUTES,
    MAX_REQUESTS,
    Question,
    band_of,
    came_of,
    engine_of,
)
from scheduler.policies.registry import policy_names
from scheduler.state import SchedulerState

logger = logging.getLogger(__name__)

# Of addresses: a third is a table of the simulated vocabulary, of which nothing is ever touched.
MEMORY_BYTES: Final = 3 << 30
CPU_S: Final = 120
# A process that gives way to all others may get little of the processors.
WALL_S: Final = 240.0
MAX_POLICIES: Final = 6
MAX_WAITING: Final = 4
_KEPT: Final = 20


class TellsState(Protocol):
    def state(self, *, max_tenants: int | None = None) -> SchedulerState: ...


class IsReplayed(Protocol):
    """Name what is scheduled, and size its engine; `ServedModel` is one."""

    @property
    def name(self) -> str: ...

    @property
    def info(self) -> EngineInfo: ...

    @property
    def service(self) -> TellsState: ...


class JobState(StrEnum):
    """Say how far a question is; one that is `CUT` ran out of time or memory."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    CUT = "cut"
    FAILED = "failed"


@dataclass
class Job:
    """Hold a question with what is known of its answer.

    `real_p95_s` is what first tokens took by class, and `error` how far the replay under the policy
    that was in force is from that: 0.1 is ten percent above it. `num_left_out` had no answer.
    """

    id: str
    model: str
    minutes: int
    policy: str
    policies: Sequence[str]
    asked_at: datetime
    state: JobState = JobState.WAITING
    num_requests: int = 0
    num_left_out: int = 0
    real_p95_s: Mapping[str, float] = field(default_factory=dict)
    found: list[dict[str, Any]] = field(default_factory=list)
    error: Mapping[str, float] = field(default_factory=dict)
    why: str = ""

    @property
    def is_over(self) -> bool:
        return self.state not in (JobState.WAITING, JobState.RUNNING)


class WhatIf:
    """Replay the last minutes under other policies; enter `running` to have it done."""

    def __init__(
        self,
        past: PastRequestStore,
        tenants: TenantService,
        models: Sequence[IsReplayed],
        *,
        cpu_s: int = CPU_S,
        wall_s: float = WALL_S,
        memory_bytes: int = MEMORY_BYTES,
        clock: Clock = time,
    ) -> None:
        self._past = past
        self._tenants = tenants
        self._models = {model.name: model for model in models}
        self._cpu_s = cpu_s
        self._wall_s = wall_s
        self._memory_bytes = memory_bytes
        self._clock = clock
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._line: asyncio.Queue[Job] = asyncio.Queue(MAX_WAITING)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer questions while the block runs."""
        task = asyncio.create_task(self._answer_all())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def ask(self, model: str, minutes: int, policies: Sequence[str]) -> Job:
        """Put a question into the line.

        Raises: `InvalidRequest`, `ModelNotFound`; `Overloaded`: the line is full.
        """
        if model not in self._models:
            raise ModelNotFound(f"The model '{model}' does not exist.", param="model")
        if not 1 <= minutes <= MAX_MINUTES:
            raise InvalidRequest(f"1 to {MAX_MINUTES} minutes can be replayed.", param="minutes")
        unknown = set(policies) - set(policy_names())
        if unknown or not 1 <= len(policies) <= MAX_POLICIES:
            raise InvalidRequest(f"Choose 1 to {MAX_POLICIES} policies.", param="policies")
        present = self._models[model].service.state(max_tenants=0).config.fairness.policy
        job = Job(
            id=uuid4().hex,
            model=model,
            minutes=minutes,
            policy=present,
            # The policy in force always: it is what the replay is held against.
            policies=list(dict.fromkeys([present, *policies])),
            asked_at=self._now(),
        )
        try:
            self._line.put_nowait(job)
        except asyncio.QueueFull:
            raise Overloaded("Too many replays wait already.", retry_after_s=30) from None
        self._jobs[job.id] = job
        while len(self._jobs) > _KEPT:
            self._jobs.popitem(last=False)
        return job

    def job(self, job_id: str) -> Job:
        """Return a question of before. Raises: `NotFound`."""
        job = self._jobs.get(job_id)
        if job is None:
            raise NotFound("There is no such replay, or no longer.")
        return job

    def jobs(self) -> Sequence[Job]:
        """Return the questions that are kept, the newest first."""
        return list(reversed(self._jobs.values()))

    async def _answer_all(self) -> None:
        while True:
            job = await self._line.get()
            job.state = JobState.RUNNING
            try:
                await self._answer(job)
            except GatewayError as exc:
                job.state, job.why = JobState.FAILED, exc.message
            except Exception:
                logger.exception("a replay failed")
                job.state, job.why = JobState.FAILED, "It failed; the server's log says why."

    async def _answer(self, job: Job) -> None:
        model = self._models[job.model]
        past = await self._past.since(
            (await self._tenants.organisation()).id,
            self._now() - timedelta(minutes=job.minutes),
            limit=MAX_REQUESTS,
            model=job.model,
        )
        named = await self._tenants.named({one.tenant_id for one in past})
        came = came_of(past, named, model.info)
        job.num_requests, job.num_left_out = len(came), len(past) - len(came)
        job.real_p95_s = _real_p95_s(past)
        if not came:
            job.state, job.why = JobState.FAILED, "No request of that time was answered."
            return
        state = model.service.state(max_tenants=0)
        question = Question(
            engine=engine_of(model.info, state.step_costs_us),
            config=plain(state.config),
            policies=list(job.policies),
            came=came,
        )
        is_whole = await self._replay(job, await asyncio.to_thread(msgspec.json.encode, question))
        job.state = JobState.DONE if is_whole else JobState.CUT
        if not is_whole:
            job.why = "It took more time or memory than a replay may have."

    async def _replay(self, job: Job, question: bytes) -> bool:
        """Have a child replay; returns whether it came to its end."""
        bounds = (str(self._memory_bytes), str(self._cpu_s))
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway.services.what_if.child", *bounds),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            async with asyncio.timeout(self._wall_s):
                with suppress(ConnectionError):
                    child.stdin.write(question)
                    await child.stdin.drain()
                    child.stdin.close()
                async for line in child.stdout:
                    found = msgspec.json.decode(line)
                    job.found.append(found)
                    if found["policy"] == job.policy:
                        job.error = _error(found["ttft_p95_s"], job.real_p95_s)
                return await child.wait() == 0
        except TimeoutError:
            return False
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.time(), UTC)


def _real_p95_s(past: Sequence[PastRequest]) -> dict[str, float]:
    """Return what first tokens took by class, of those that have a time."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    for one in past:
        if one.ttft_ms is not None:
            times[band_of(one)].append(one.ttft_ms / 1000)
    return {
        band: sorted(of_band)[min(len(of_band) - 1, int(0.95 * len(of_band)))]
        for band, of_band in times.items()
    }


def _error(replayed: Mapping[str, float], real: Mapping[str, float]) -> dict[str, float]:
    return {
        band: replayed[band] / real[band] - 1.0 for band in replayed if real.get(band, 0.0) > 0.0
    }
