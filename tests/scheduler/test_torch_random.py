"""Scheduler and real engine under random use: a request's tokens are those of a run alone.

Whatever is admitted, cut into chunks, sent back, resumed, cancelled or found in the prefix cache
around it, a request draws the same tokens, with the same logprobs, as when nothing else runs.
"""

from __future__ import annotations

import functools
import random
import tempfile
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from checkpoints import make_tiny_llama
from engine.config import EngineConfig
from engine.contract import EngineInfo, SamplingParams
from engine.cpu.runner import TorchEngine
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.request import Admit, FinishReason, Request, RequestOutput
from tests.histories import num_histories

BLOCK_SIZE = 16
MAX_TOKENS = 40
# Few beginnings, so that prefixes are often shared.
TEXTS = [[random.Random(seed).randrange(3, 128) for _ in range(60)] for seed in (1, 2)]

KINDS = (
    SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0),
    SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, repetition_penalty=1.6, logprobs=2),
    SamplingParams(
        max_tokens=MAX_TOKENS, temperature=0.0, frequency_penalty=1.0, prompt_logprobs=1
    ),
    SamplingParams(max_tokens=MAX_TOKENS, temperature=1.2, seed=9, logit_bias=((4, 5.0),)),
)


@functools.cache
def shared_engine() -> TorchEngine:
    """Make the one engine of all examples; a scheduler may be told that it is smaller."""
    with tempfile.TemporaryDirectory() as path:
        make_tiny_llama(Path(path), eos_token_id=None)
        return TorchEngine(
            EngineConfig(
                model_dir=Path(path),
                block_size=BLOCK_SIZE,
                num_blocks=64,
                max_num_seqs=8,
                num_threads=1,
            )
        )


class Outcome:
    """Gather what comes of one request."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.scores: list[float] = []
        self.prompt_scores: list[float] = []
        self.finish_reason: FinishReason | None = None

    def take(self, output: RequestOutput) -> None:
        assert self.finish_reason is None, "output after the end"
        self.tokens += output.token_ids
        self.scores += [entry.logprob for entry in output.logprobs or ()]
        if output.prompt_logprobs is not None:
            assert not self.prompt_scores, "a prompt is scored once"
            self.prompt_scores = [entry.logprob for entry in output.prompt_logprobs if entry]
        self.finish_reason = output.finish_reason


def make_request(request_id: str, prompt: tuple[int, ...], kind: int, salt: bytes) -> Request:
    return Request(
        request_id=request_id,
        tenant_id="t",
        key_id="k",
        prompt_token_ids=array("i", prompt),
        params=KINDS[kind],
        cache_salt=salt,
        arrival_s=0,
    )


@functools.cache
def run_alone(prompt: tuple[int, ...], kind: int) -> Outcome:
    """Run a request on an engine of its own, in one chunk, with room for everything."""
    engine = _engine_for_lone_runs()
    engine.reset()
    scheduler = Scheduler(engine.info, first_come(prefix_caching=False))
    scheduler.offer(make_request("alone", prompt, kind, b""), 0)
    outcome = Outcome()
    while (plan := scheduler.plan(0)) is not None:
        for output in scheduler.report(engine.collect(engine.launch(plan)), 0):
            outcome.take(output)
    return outcome


@functools.cache
def _engine_for_lone_runs() -> TorchEngine:
    return shared_engine.__wrapped__()


class EngineMachine(RuleBasedStateMachine):
    """Offers and cancels between steps, with hardly any room for anyone."""

    scheduler: Scheduler

    def __init__(self) -> None:
        super().__init__()
        self.engine = shared_engine()
        self.engine.reset()
        self.offered: dict[str, tuple[tuple[int, ...], int]] = {}
        self.outcomes: dict[str, Outcome] = {}

    @initialize(
        num_blocks=st.integers(5, 8),
        max_num_seqs=st.integers(2, 6),
        budget=st.sampled_from([1, 5, 16, 23, 200]),
        num_scored=st.sampled_from([3, 1000]),
        caching=st.booleans(),
    )
    def begin(
        self, num_blocks: int, max_num_seqs: int, budget: int, num_scored: int, caching: bool
    ) -> None:
        """Pretend that the engine is small in every way."""
        info: EngineInfo = replace(
            self.engine.info,
            num_blocks=num_blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_num_prompt_logprobs=num_scored,
        )
        self.scheduler = Scheduler(info, first_come(prefix_caching=caching))

    @rule(
        text=st.integers(0, 1),
        lens=st.lists(st.integers(1, 40), min_size=2, max_size=5),
        kind=st.integers(0, len(KINDS) - 1),
        salt=st.sampled_from([b"acme", b"acme", b"globex"]),
    )
    def offer(self, text: int, lens: list[int], kind: int, salt: bytes) -> None:
        """Offer requests for beginnings of a text."""
        for index, length in enumerate(lens):
            request_id = str(len(self.offered))
            prompt = tuple(TEXTS[text][:length])
            kind = (kind + index) % len(KINDS)
            request = make_request(request_id, prompt, kind, salt)
            assert isinstance(self.scheduler.offer(request, 0), Admit)
            self.offered[request_id] = prompt, kind
            self.outcomes[request_id] = Outcome()

    @rule(num_steps=st.integers(1, 30))
    def step(self, num_steps: int) -> None:
        """Let the engine run."""
        for _ in range(num_steps):
            if not self.turn():
                return

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Cancel a live request."""
        live = [r for r, outcome in self.outcomes.items() if outcome.finish_reason is None]
        if live:
            output = self.scheduler.cancel(data.draw(st.sampled_from(live)), 0)
            assert output is not None
            self.take(output)

    def turn(self) -> bool:
        plan = self.scheduler.plan(0)
        if plan is None:
            return False
        for output in self.scheduler.report(self.engine.collect(self.engine.launch(plan)), 0):
            self.take(output)
        return True

    def take(self, output: RequestOutput) -> None:
        """Compare what was drawn so far with a run alone."""
        outcome = self.outcomes[output.request_id]
        outcome.take(output)
        alone = run_alone(*self.offered[output.request_id])
        if output.token_ids:
            assert outcome.tokens == alone.tokens[: len(outcome.tokens)]
        if output.logprobs is not None:
            assert outcome.scores[-1] == pytest.approx(
                alone.scores[len(outcome.scores) - 1], abs=1e-4
            )
        if output.prompt_logprobs is not None:
            assert outcome.prompt_scores == pytest.approx(alone.prompt_scores, abs=1e-4)

    def teardown(self) -> None:
        """Run dry: whoever was not cancelled has all it is owed, and all blocks are back."""
        if not self.offered:
            return
        while self.turn():
            pass
        room = self.scheduler.max_sequence_len
        for request_id, (prompt, kind) in self.offered.items():
            outcome, alone = self.outcomes[request_id], run_alone(prompt, kind)
            if outcome.finish_reason is FinishReason.CANCELLED:
                continue
            assert outcome.finish_reason is FinishReason.LENGTH
            assert outcome.tokens == alone.tokens[: room - len(prompt)]
            num_scored = len(outcome.tokens) if KINDS[kind].logprobs is not None else 0
            assert len(outcome.scores) == num_scored
            assert len(outcome.prompt_scores) == len(alone.prompt_scores)
        snapshot = self.scheduler.snapshot()
        assert snapshot.free_blocks == snapshot.total_blocks


EngineMachine.TestCase.settings = settings(
    max_examples=num_histories(15),
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestEngine = pytest.mark.histories(EngineMachine.TestCase)
