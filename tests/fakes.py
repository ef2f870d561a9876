"""Fakes of our own ports, shared by tests: requests, a clock, engines."""

from __future__ import annotations

import threading
from array import array
from collections import defaultdict, deque
from collections.abc import Sequence

from engine.contract import EngineInfo, SamplingParams, StepPlan, StepResult
from engine.simulated import SimulatedEngine, draw_token
from engine.step_cost import LinearCost, StepCost
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.request import Admit, Band, FinishReason, Reject, Request, RequestOutput, Slo

UNIT_COST = StepCost("unit", small=LinearCost(1.0, 0.0), large=LinearCost(1.0, 0.0))


NOTHING_PROMISED = Slo()


def make_request(
    request_id: str = "r",
    *,
    prompt: Sequence[int] = (1, 2, 3),
    max_tokens: int = 4,
    seed: int = 0,
    tenant_id: str = "acme",
    band: Band = Band.DEFAULT,
    salt: bytes = b"acme",
    arrival_s: float = 0.0,
    granted_tokens: int | None = None,
    stop_token_ids: tuple[int, ...] = (),
    ignore_eos: bool = False,
    slo: Slo = NOTHING_PROMISED,
    weight: float = 1.0,
    expires_s: float | None = None,
    finish_by_s: float | None = None,
) -> Request:
    """Make a request of a tenant with one key."""
    return Request(
        request_id=request_id,
        tenant_id=tenant_id,
        key_id=f"{tenant_id}-key",
        prompt_token_ids=array("i", prompt),
        params=SamplingParams(
            max_tokens=max_tokens, seed=seed, stop_token_ids=stop_token_ids, ignore_eos=ignore_eos
        ),
        cache_salt=salt,
        arrival_s=arrival_s,
        band=band,
        granted_tokens=granted_tokens,
        slo=slo,
        weight=weight,
        expires_s=expires_s,
        finish_by_s=finish_by_s,
    )


def make_engine(
    *,
    cost: StepCost = UNIT_COST,
    vocab_size: int = 50,
    max_model_len: int = 64,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 16,
    num_blocks: int = 32,
    block_size: int = 4,
    eos_token_ids: frozenset[int] = frozenset(),
    depth: int = 1,
) -> SimulatedEngine:
    """Make a small engine in virtual time; every step takes one second of it."""
    return SimulatedEngine(
        cost,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        num_blocks=num_blocks,
        block_size=block_size,
        eos_token_ids=eos_token_ids,
        depth=depth,
    )


def expected_tokens(request: Request, info: EngineInfo) -> tuple[list[int], FinishReason]:
    """Say what a simulated engine generates for a request that runs alone, and why it ends."""
    end_token_ids = set(request.params.stop_token_ids)
    if not request.params.ignore_eos:
        end_token_ids |= info.eos_token_ids
    num_prompt_tokens = len(request.prompt_token_ids)
    limit = min(
        num_prompt_tokens + request.params.max_tokens,
        info.max_model_len,
        info.num_blocks * info.block_size,
    )
    token_ids: list[int] = []
    for position in range(num_prompt_tokens, limit):
        token_id = draw_token(request.params.seed, position, range(info.vocab_size))
        if token_id in end_token_ids:
            return token_ids, FinishReason.STOP
        token_ids.append(token_id)
    return token_ids, FinishReason.LENGTH


class ManualClock:
    """Tell the time that a test has set, in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Driver:
    """Run a scheduler and an engine together in virtual time and keep what comes out."""

    def __init__(
        self, engine: SimulatedEngine, *, prefix_caching: bool = True, max_num_queued: int = 10_000
    ) -> None:
        self.engine = engine
        self.scheduler = Scheduler(
            engine.info,
            first_come(prefix_caching=prefix_caching, max_num_queued=max_num_queued),
        )
        self.now = 0.0
        self.plans: list[StepPlan] = []
        self.handles: deque[object] = deque()
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.last: dict[str, RequestOutput] = {}

    def offer(self, request: Request) -> Admit | Reject:
        return self.scheduler.offer(request, self.now)

    def turn(self) -> bool:
        """Do as the service does; returns whether anything was done."""
        plan = self.scheduler.plan(self.now)
        if plan is not None:
            self.plans.append(plan)
            self.handles.append(self.engine.launch(plan))
        if self.handles and (plan is None or len(self.handles) == self.engine.info.depth):
            self.collect()
            return True
        return plan is not None

    def collect(self) -> None:
        result = self.engine.collect(self.handles.popleft())
        self.now += result.step_s
        self.take(self.scheduler.report(result, self.now))

    def take(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            last = self.last.get(output.request_id)
            assert last is None or last.finish_reason is None, "output after the end"
            self.tokens[output.request_id] += output.token_ids
            self.last[output.request_id] = output

    def fail(self, step_id: int) -> None:
        """Fail a step as the service does after an engine's fault."""
        self.handles.clear()
        self.take(self.scheduler.fail_step(step_id, "fault", self.now))
        self.engine.reset()

    def lack_memory(self, step_id: int) -> bool:
        """Take a step back as the service does where it found no memory, if it can be smaller."""
        if not self.scheduler.take_back(step_id, self.now):
            return False
        self.handles.clear()
        self.engine.reset()
        return True

    def run(self, max_steps: int = 5000) -> None:
        for _ in range(max_steps):
            if not self.turn():
                return
        raise AssertionError("the scheduler never ran dry")


class StepwiseEngine:
    """Wrap an engine so that a test lets its steps through and makes them fail.

    While `gate` is clear, `collect` waits for it. The next launches or collects raise as many
    times as `failing_launches` or `failing_collects` say; with `failing_reset` so does `reset`.
    """

    def __init__(self, engine: SimulatedEngine) -> None:
        self.engine = engine
        self.info = engine.info
        self.gate = threading.Event()
        self.gate.set()
        self.plans: list[StepPlan] = []
        self.failing_launches = 0
        self.failing_collects = 0
        self.failing_reset = False
        self.num_resets = 0

    def launch(self, plan: StepPlan) -> object:
        self.plans.append(plan)
        if self.failing_launches:
            self.failing_launches -= 1
            raise RuntimeError("the launch failed")
        return self.engine.launch(plan)

    def collect(self, handle: object) -> StepResult:
        assert self.gate.wait(10), "the test never opened the gate"
        if self.failing_collects:
            self.failing_collects -= 1
            raise RuntimeError("the step failed")
        return self.engine.collect(handle)

    def reset(self) -> None:
        if self.failing_reset:
            raise RuntimeError("the reset failed")
        self.num_resets += 1
        self.engine.reset()

    def close(self) -> None:
        self.engine.close()
