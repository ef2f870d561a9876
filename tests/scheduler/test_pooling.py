"""The scheduler and the engine of embedding models together, against transformers."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import Qwen3Model

from checkpoints import make_tiny
from engine.config import EngineConfig
from engine.contract import Capability, Pooling, SamplingParams
from engine.cpu.embedder import EmbeddingEngine
from engine.open import open_engine
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.inline import InlineLoop
from scheduler.request import Admit, Band, FinishReason, Request, RequestOutput

SHARED = tuple(range(3, 40))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 as Qwen3-Embedding is saved: without its head, its weights named from within."""
    path = tmp_path_factory.mktemp("embedding")
    make_tiny(path, Qwen3Model, head_dim=16)
    return path


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Prompts of many lengths, half of them with a common beginning."""
    draw = random.Random(5)
    lengths = (1, 2, 15, 16, 17, 33, 64, 100)
    own = [[draw.randrange(3, 128) for _ in range(length)] for length in lengths]
    return own + [[*SHARED, *prompt[:20]] for prompt in own]


@pytest.fixture(scope="module")
def states(model_dir: Path, prompts: list[list[int]]) -> list[NDArray[np.float64]]:
    """What transformers makes of each prompt: the last hidden states of all its tokens."""
    model: Any = Qwen3Model.from_pretrained(model_dir, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [model(torch.tensor([p])).last_hidden_state[0].double().numpy() for p in prompts]


def expected(states: Sequence[NDArray[np.float64]], pooling: Pooling) -> NDArray[np.float64]:
    is_mean = pooling is Pooling.MEAN
    pooled = np.array([one.mean(axis=0) if is_mean else one[-1] for one in states])
    return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)


def open_embedder(model_dir: Path, pooling: Pooling, **sizes: Any) -> EmbeddingEngine:
    settings = {"block_size": 16, "num_blocks": 64, "max_num_seqs": 8, "num_threads": 1} | sizes
    engine = open_engine(EngineConfig(model_dir=model_dir, pooling=pooling, **settings))
    assert isinstance(engine, EmbeddingEngine)
    return engine


def request(index: int, prompt: Sequence[int], **fields: Any) -> Request:
    return Request(
        request_id=str(index),
        tenant_id="t",
        key_id="k",
        prompt_token_ids=array("i", prompt),
        params=SamplingParams(max_tokens=1),
        cache_salt=b"t",
        arrival_s=0.0,
        **fields,
    )


def run(scheduler: Scheduler, engine: EmbeddingEngine) -> dict[str, RequestOutput]:
    loop, ended = InlineLoop(scheduler, engine, lambda: 0.0), {}
    while True:
        outputs = loop.turn()
        ended |= {output.request_id: output for output in outputs}
        if loop.idle:
            return ended


@pytest.mark.parametrize("native", ["off", "auto"])
@pytest.mark.parametrize("budget", [7, 256])
@pytest.mark.parametrize("pooling", list(Pooling))
def test_vectors_equal_transformers(
    model_dir: Path,
    prompts: list[list[int]],
    states: list[NDArray[np.float64]],
    pooling: Pooling,
    budget: int,
    native: str,
    native_library: bool,
) -> None:
    """Whatever the chunks, the neighbours and what is cached, vectors are those of transformers,
    and nothing is drawn."""
    engine = open_embedder(model_dir, pooling, max_num_batched_tokens=budget, native=native)
    scheduler = Scheduler(engine.info, first_come())
    cached = []
    # The second round meets the blocks that the first one filled.
    for seed in (1, 2):
        order = list(range(len(prompts)))
        random.Random(seed).shuffle(order)
        for index in order:
            assert isinstance(scheduler.offer(request(index, prompts[index]), 0.0), Admit)
        ended = run(scheduler, engine)
        vectors = np.array([ended[str(index)].pooled for index in range(len(prompts))])
        np.testing.assert_allclose(vectors, expected(states, pooling), atol=2e-6)
        for index, prompt in enumerate(prompts):
            output = ended[str(index)]
            assert output.finish_reason is FinishReason.STOP
            assert (output.token_ids, output.num_output_tokens) == ((), 0)
            assert output.num_prefilled_tokens == len(prompt)
        cached.append(sum(output.num_cached_tokens for output in ended.values()))
    # A block holds no hidden states, so a mean takes none.
    assert (cached[1] > 0) == (pooling is Pooling.LAST)
    snapshot = scheduler.snapshot()
    assert (snapshot.num_output_tokens, snapshot.running, snapshot.queued) == (0, 0, 0)
    assert snapshot.free_blocks == snapshot.total_blocks


@pytest.mark.parametrize("pooling", list(Pooling))
def test_a_prompt_that_is_sent_back_has_the_same_vector(
    model_dir: Path,
    prompts: list[list[int]],
    states: list[NDArray[np.float64]],
    pooling: Pooling,
) -> None:
    """One that a higher band takes the blocks of midway begins its sum anew."""
    engine = open_embedder(model_dir, pooling, num_blocks=8, max_num_batched_tokens=16)
    scheduler = Scheduler(engine.info)
    long = len(prompts[7])
    assert isinstance(scheduler.offer(request(7, prompts[7], band=Band.BATCH), 0.0), Admit)
    loop = InlineLoop(scheduler, engine, lambda: 0.0)
    assert not [*loop.turn(), *loop.turn()], f"of {long} tokens 32 are computed"
    assert isinstance(scheduler.offer(request(6, prompts[6]), 0.0), Admit)
    ended = run(scheduler, engine)
    assert scheduler.snapshot().num_preemptions == 1
    facts = ended["7"].facts
    assert facts is not None
    assert len(facts.preemptions) == 1
    vectors = np.array([ended[str(index)].pooled for index in (6, 7)])
    np.testing.assert_allclose(vectors, expected(states[6:8], pooling), atol=2e-6)


def test_a_row_that_cannot_be_computed_fails_alone(
    model_dir: Path, prompts: list[list[int]], states: list[NDArray[np.float64]]
) -> None:
    """A token beyond the vocabulary ends its own request, and the neighbour's vector is right."""
    engine = open_embedder(model_dir, Pooling.MEAN)
    scheduler = Scheduler(engine.info, first_come())
    scheduler.offer(request(0, [5, 4096]), 0.0)
    scheduler.offer(request(5, prompts[5]), 0.0)
    ended = run(scheduler, engine)
    assert ended["0"].finish_reason is FinishReason.ERROR
    vector = np.array([ended["5"].pooled])
    np.testing.assert_allclose(vector, expected(states[5:6], Pooling.MEAN), atol=2e-6)


def test_a_cancelled_request_leaves_nothing(model_dir: Path, prompts: list[list[int]]) -> None:
    """One that is cancelled midway gives back its blocks, and says how far it had come."""
    engine = open_embedder(model_dir, Pooling.MEAN, max_num_batched_tokens=16)
    scheduler = Scheduler(engine.info, first_come())
    scheduler.offer(request(7, prompts[7]), 0.0)
    InlineLoop(scheduler, engine, lambda: 0.0).turn()
    output = scheduler.cancel("7", 0.0)
    assert output is not None
    assert (output.pooled, output.num_prefilled_tokens) == (None, 16)
    assert scheduler.snapshot().free_blocks == 64


def test_what_the_engine_says_of_itself(model_dir: Path) -> None:
    """It pools and does nothing else, and says of how many numbers a vector is."""
    info = open_embedder(model_dir, Pooling.LAST).info
    assert info.capabilities == {Capability.POOLING}
    assert (info.pooling, info.embedding_size) == (Pooling.LAST, 64)
