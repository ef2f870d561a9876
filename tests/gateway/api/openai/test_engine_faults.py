"""Faults in the engine as clients and balancers see them."""

from __future__ import annotations

import asyncio
import json
from typing import cast

import httpx
import pytest

from engine.contract import NewSequence
from engine.cpu.runner import TorchEngine
from engine.text import Tokenizer
from faulty_engine import FaultyEngine
from gateway.services.inference.models import ServedModel

pytestmark = pytest.mark.anyio

CULPRIT = "Once upon a time"
PROMPTS = ("The scheduler", CULPRIT, "A tenant", "Every request has")


# In place of the engine that the other tests of the demo model share.
@pytest.fixture(name="torch_engine")
def faulty_engine(torch_engine: TorchEngine, tokenizer: Tokenizer) -> FaultyEngine:
    """The demo model's engine, whose rows are known by their prompts."""

    def prompt_of(new: NewSequence) -> str:
        return tokenizer.decode(new.token_ids[: new.num_prompt_tokens]).strip()

    return FaultyEngine(torch_engine, name_of=prompt_of)


@pytest.fixture
def engine(torch_engine: TorchEngine) -> FaultyEngine:
    return cast(FaultyEngine, torch_engine)


async def complete(client: httpx.AsyncClient, prompt: str, **wishes: object) -> httpx.Response:
    body = {"model": "demo", "prompt": prompt, "max_tokens": 12, "temperature": 0}
    return await client.post("/v1/completions", json=body | {"ignore_eos": True} | wishes)


async def complete_all(
    client: httpx.AsyncClient, demo: ServedModel, engine: FaultyEngine
) -> dict[str, httpx.Response]:
    """Complete all prompts side by side, in the same steps."""
    engine.gate.clear()
    tasks = [asyncio.create_task(complete(client, prompt)) for prompt in PROMPTS]
    async with asyncio.timeout(10):
        while (now := demo.service.snapshot()).queued + now.running < len(PROMPTS):
            await asyncio.sleep(0.001)
    engine.gate.set()
    return dict(zip(PROMPTS, await asyncio.gather(*tasks), strict=True))


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    text = answer.json()["choices"][0]["text"]
    assert isinstance(text, str)
    assert text
    return text


async def test_a_fault_in_one_row_is_one_clients_error(
    demo_client: httpx.AsyncClient, demo: ServedModel, engine: FaultyEngine
) -> None:
    """One client gets a 500, the others the very text of a run without the fault."""
    expected = await complete_all(demo_client, demo, engine)
    engine.num_attempts.clear()
    engine.failing_rows[CULPRIT] = 4
    answers = await complete_all(demo_client, demo, engine)
    assert answers[CULPRIT].status_code == 500
    assert answers[CULPRIT].json()["error"]["type"] == "server_error"
    for prompt in PROMPTS:
        if prompt != CULPRIT:
            assert text_of(answers[prompt]) == text_of(expected[prompt])
    assert engine.num_resets == 1, "the fixture's own"
    assert (await demo_client.get("/readyz")).status_code == 200


async def test_a_stream_in_a_step_that_raises_ends_with_an_error(
    demo_client: httpx.AsyncClient, engine: FaultyEngine
) -> None:
    """A stream that had begun gets an error event as its last, and the next request is served."""
    expected = text_of(await complete(demo_client, CULPRIT))
    engine.num_attempts.clear()
    # Late enough that a busy machine has begun to answer: a fault before that is a status.
    engine.failing_steps[CULPRIT] = 150
    answer = await complete(demo_client, CULPRIT, stream=True, max_tokens=200)
    assert answer.status_code == 200
    *begun, last = [line for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert begun
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"
    assert text_of(await complete(demo_client, CULPRIT)) == expected


async def test_three_steps_in_a_row_that_raise_turn_readiness_off(
    demo_client: httpx.AsyncClient, engine: FaultyEngine
) -> None:
    """After the third fault `/readyz` says 503, `/livez` is fine, and who comes is served."""
    expected = text_of(await complete(demo_client, CULPRIT))
    for _ in range(3):
        assert (await demo_client.get("/readyz")).status_code == 200
        engine.num_attempts.clear()
        engine.failing_steps[CULPRIT] = 1
        assert (await complete(demo_client, CULPRIT)).status_code == 500
    assert (await demo_client.get("/readyz")).status_code == 503
    assert (await demo_client.get("/livez")).status_code == 200
    assert text_of(await complete(demo_client, CULPRIT)) == expected


async def test_a_step_without_memory_is_nobodys_error(
    demo_client: httpx.AsyncClient, demo: ServedModel, engine: FaultyEngine
) -> None:
    """Where rows do not fit side by side they take turns: all clients get the same text, later."""
    expected = await complete_all(demo_client, demo, engine)
    engine.max_num_rows = 2
    answers = await complete_all(demo_client, demo, engine)
    assert {p: text_of(a) for p, a in answers.items()} == {
        p: text_of(a) for p, a in expected.items()
    }
    assert demo.service.snapshot().num_shrinks >= 1
    assert (await demo_client.get("/readyz")).status_code == 200
