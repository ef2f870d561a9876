"""The baselines under random arrivals and cancels: everyone is served, nothing is lost.

The simulated engine asserts that each plan is feasible; the real one that arithmetic agrees.
"""

from __future__ import annotations

import functools
import random
import tempfile
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_run import VirtualRun
from checkpoints import make_tiny_llama
from engine.config import EngineConfig
from engine.contract import SamplingParams
from engine.cpu.runner import TorchEngine
from fakes import expected_tokens, make_engine, make_request
from scheduler.batching.baselines import BASELINES, BatchingConfig, make_baseline
from scheduler.inline import InlineLoop
from scheduler.request import Admit, FinishReason, Request
from tests.histories import num_histories

BLOCK_SIZE = 2
MAX_MODEL_LEN = 24


@pytest.mark.histories
@settings(max_examples=num_histories(100), deadline=None)
@given(
    name=st.sampled_from(BASELINES),
    depth=st.sampled_from([1, 2]),
    num_blocks=st.integers(2, 40),
    max_num_seqs=st.integers(1, 6),
    budget=st.sampled_from([1, 2, 3, 7, 40]),
    batch_size=st.integers(1, 5),
    timeout_s=st.sampled_from([0.0, 0.5, 5.0]),
    max_batch_tokens=st.sampled_from([1, 12, 99]),
    seed=st.integers(0, 2**32),
)
def test_everyone_is_served_and_nothing_leaks(
    name: str,
    depth: int,
    num_blocks: int,
    max_num_seqs: int,
    budget: int,
    batch_size: int,
    timeout_s: float,
    max_batch_tokens: int,
    seed: int,
) -> None:
    """Each request ends with the tokens of a run alone or where it was cancelled; all is freed."""
    engine = make_engine(
        vocab_size=12,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        eos_token_ids=frozenset({0}),
        depth=depth,
    )
    config = BatchingConfig(
        batch_size=batch_size,
        timeout_s=timeout_s,
        max_batch_tokens=max_batch_tokens,
        window_size=2 * batch_size,
    )
    run = VirtualRun(make_baseline(name, engine.info, config), engine)
    requests = offer_at_random(run, random.Random(seed))
    cancelled: set[str] = set()
    draw = random.Random(seed + 1)
    for _ in range(60):
        run.turn()
        if draw.random() < 0.15:
            # Queued, running, or not there yet or any more: then there is nothing to cancel.
            request_id = draw.choice(list(requests))
            cancelled.add(request_id)
            run.cancel(request_id)
    run.finish()
    for request_id, request in requests.items():
        tokens, reason = expected_tokens(request, engine.info)
        last = run.last[request_id]
        if last.finish_reason is FinishReason.CANCELLED:
            assert request_id in cancelled
            assert run.tokens[request_id] == tokens[: len(run.tokens[request_id])]
        else:
            assert (run.tokens[request_id], last.finish_reason) == (tokens, reason)
            assert last.num_output_tokens == len(tokens) + (reason is FinishReason.STOP)
    snapshot = run.scheduler.snapshot()
    assert (snapshot.queued, snapshot.running, snapshot.idle_rows) == (0, 0, 0)
    assert snapshot.free_blocks == snapshot.total_blocks
    assert name == "padded" or not snapshot.num_padding_tokens


def offer_at_random(run: VirtualRun, rng: random.Random) -> dict[str, Request]:
    """Let up to 20 requests arrive that fit the engine."""
    room = min(MAX_MODEL_LEN, run.scheduler.max_sequence_len)
    requests: dict[str, Request] = {}
    arrival_s = 0.0
    for number in range(rng.randint(1, 20)):
        arrival_s += rng.choice((0.0, 0.0, 1.0, 3.0))
        num_prompt_tokens = rng.randint(1, min(12, room - 1))
        request = make_request(
            f"r{number}",
            prompt=[rng.choice((1, 2)) for _ in range(num_prompt_tokens)],
            max_tokens=rng.randint(1, MAX_MODEL_LEN - num_prompt_tokens),
            seed=rng.randint(0, 50),
            arrival_s=arrival_s,
            stop_token_ids=rng.choice(((), (5,))),
        )
        requests[request.request_id] = request
        run.offer_at(request)
    return requests


@functools.cache
def shared_engine() -> TorchEngine:
    """Make the one real engine of all examples; a scheduler may be told that it is smaller."""
    with tempfile.TemporaryDirectory() as path:
        make_tiny_llama(Path(path), eos_token_id=None)
        return TorchEngine(
            EngineConfig(
                model_dir=Path(path), block_size=16, num_blocks=64, max_num_seqs=8, num_threads=1
            )
        )


def run_real(name: str, requests: list[Request], *, budget: int) -> dict[str, list[int]]:
    engine = shared_engine()
    engine.reset()
    info = replace(engine.info, max_num_batched_tokens=budget)
    config = BatchingConfig(batch_size=4, timeout_s=0.0, window_size=8)
    scheduler = make_baseline(name, info, config)
    loop = InlineLoop(scheduler, engine, lambda: 0.0)
    for request in requests:
        assert isinstance(scheduler.offer(request, 0), Admit)
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    while True:
        for output in loop.turn():
            tokens[output.request_id] += output.token_ids
        if loop.idle:
            snapshot = scheduler.snapshot()
            assert snapshot.free_blocks == snapshot.total_blocks
            return tokens


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("budget", [16, 2048])
def test_real_tokens_are_those_of_a_run_alone(name: str, budget: int) -> None:
    """On a real model a request draws the same tokens in a batch, padded or not, as alone."""
    draw = random.Random(4)
    requests = [
        Request(
            request_id=str(number),
            tenant_id="acme",
            key_id="acme",
            prompt_token_ids=array("i", [draw.randrange(3, 128) for _ in range(length)]),
            params=SamplingParams(
                max_tokens=1 + 7 * number % 25,
                temperature=0.0 if number % 2 else 1.1,
                seed=number,
            ),
            cache_salt=b"acme",
            arrival_s=0.0,
        )
        for number, length in enumerate((1, 40, 17, 3, 64, 33, 16, 5, 90, 2))
    ]
    together = run_real(name, requests, budget=budget)
    for request in requests:
        alone = run_real("static", [request], budget=2048)
        assert together[request.request_id] == alone[request.request_id]
        assert len(alone[request.request_id]) == request.params.max_tokens
