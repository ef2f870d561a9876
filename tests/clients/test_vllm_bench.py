"""The payloads of `vllm bench serve`, in the shapes of its source."""

from __future__ import annotations

import pytest

from tests.clients.vllm_bench import VllmBench
from tests.live_server import Server

pytestmark = pytest.mark.anyio

OUTPUT_LEN = 32
PROMPTS = [f"Question {number}: what does the scheduler do?" for number in range(16)]


@pytest.fixture
def bench(server: Server) -> VllmBench:
    return VllmBench(server.api.removesuffix("/v1"), server.key, model="sluice-demo")


async def test_the_first_model_is_found(bench: VllmBench) -> None:
    """Without `--model` it takes the first card's name and root."""
    assert await bench.first_model() == ("sluice-demo", "sluice-demo")


async def test_texts_run_to_the_length_asked_for(bench: VllmBench) -> None:
    """The random data set's requests all end with as many tokens as they asked for."""
    outputs = await bench.completions(PROMPTS, OUTPUT_LEN)
    assert [one.error for one in outputs if not one.success] == []
    assert {one.output_tokens for one in outputs} == {OUTPUT_LEN}
    assert all(one.prompt_tokens > 5 and one.text and one.gaps_s for one in outputs)


async def test_prompts_of_token_ids(bench: VllmBench) -> None:
    """A timed trace sends ids, and is charged for exactly those."""
    prompts = [[5, 6, 7, 8, 9], [10, 11, 12]]
    outputs = await bench.completions(prompts, OUTPUT_LEN)
    assert [one.prompt_tokens for one in outputs] == [5, 3]
    assert {one.output_tokens for one in outputs} == {OUTPUT_LEN}


async def test_chats_stop_where_they_are_done(bench: VllmBench) -> None:
    """Without `--ignore-eos`, greedy: the demo model's answer, and its usage at the end."""
    bench.ignore_eos, bench.extra_body = False, {"temperature": 0.0}
    (output,) = await bench.chats(["What is Sluice?"], 256)
    assert "gateway" in output.text
    assert 1 < output.output_tokens < 256


async def test_sampling_flags_are_taken(bench: VllmBench) -> None:
    """Every sampling flag of its command line goes into the body, and `--logprobs` with it."""
    bench.logprobs = 2
    bench.extra_body = {
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.01,
        "temperature": 0.7,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.1,
        "repetition_penalty": 1.05,
    }
    outputs = await bench.completions(PROMPTS[:2], OUTPUT_LEN)
    assert {one.output_tokens for one in outputs} == {OUTPUT_LEN}
