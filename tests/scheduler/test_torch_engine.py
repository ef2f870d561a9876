"""The scheduler and the real engine together, against transformers."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest

from checkpoints import load_reference, make_tiny_llama, reference_greedy
from engine.config import EngineConfig
from engine.contract import SamplingParams
from engine.cpu.runner import TorchEngine
from scheduler.config import first_come
from scheduler.core import Scheduler
from scheduler.request import Admit, Request

MAX_TOKENS = 24
SHARED = tuple(range(3, 40))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    make_tiny_llama(path, eos_token_id=None)
    return path


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Prompts of many lengths, half of them with a common beginning."""
    draw = random.Random(3)
    lengths = (1, 2, 15, 16, 17, 33, 64, 70)
    own = [[draw.randrange(3, 128) for _ in range(length)] for length in lengths]
    return own + [[*SHARED, *prompt[:20]] for prompt in own]


@pytest.fixture(scope="module")
def expected(model_dir: Path, prompts: list[list[int]]) -> list[list[int]]:
    model = load_reference(model_dir)
    return [reference_greedy(model, prompt, MAX_TOKENS) for prompt in prompts]


@pytest.mark.parametrize("native", ["off", "auto"])
@pytest.mark.parametrize("budget", [1, 7, 16, 17, 2048])
@pytest.mark.parametrize("prefix_caching", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize(
    ("block_size", "num_blocks"), [(16, 12), (32, 6), (64, 3), (16, 200)], ids=str
)
def test_greedy_tokens_equal_transformers(
    model_dir: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    budget: int,
    prefix_caching: bool,
    block_size: int,
    num_blocks: int,
    native: str,
    native_library: bool,
) -> None:
    """Whatever the chunks, the blocks, the cache and the preemptions, the tokens are the same."""
    engine = TorchEngine(
        EngineConfig(
            model_dir=model_dir,
            block_size=block_size,
            num_blocks=num_blocks,
            max_num_seqs=8,
            max_num_batched_tokens=budget,
            num_threads=1,
            native=native,
        )
    )
    assert engine.uses_native == (native == "auto" and native_library)
    scheduler = Scheduler(engine.info, first_come(prefix_caching=prefix_caching))
    # A token a step takes many steps: every other prompt of each kind is enough of them.
    order = list(range(0, len(prompts), 2 if budget == 1 else 1))
    random.Random(budget).shuffle(order)
    for index in order:
        request = Request(
            request_id=str(index),
            tenant_id="t",
            key_id="k",
            prompt_token_ids=array("i", prompts[index]),
            params=SamplingParams(max_tokens=MAX_TOKENS, temperature=0),
            cache_salt=b"t",
            arrival_s=0,
        )
        assert isinstance(scheduler.offer(request, 0), Admit)
    tokens: dict[str, list[int]] = {str(index): [] for index in order}
    while (plan := scheduler.plan(0)) is not None:
        for output in scheduler.report(engine.collect(engine.launch(plan)), 0):
            tokens[output.request_id] += output.token_ids
    assert tokens == {str(index): expected[index] for index in order}
    snapshot = scheduler.snapshot()
    assert snapshot.free_blocks == snapshot.total_blocks
    # The cases that are meant to meet trouble did meet it.
    if (block_size, num_blocks) == (16, 12) and budget > 1:
        assert snapshot.num_preemptions > 0
    if prefix_caching and block_size <= len(SHARED):
        assert snapshot.num_cached_tokens > 0
    engine.close()
