"""Text completions in OpenAI's shapes."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from engine.text import Tokenizer

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"
BODY: dict[str, Any] = {"model": "sim", "prompt": "Once upon", "max_tokens": 6, "seed": 3}


async def test_answer_has_openais_shape(client: httpx.AsyncClient) -> None:
    """A plain answer carries text, null logprobs, a finish reason and the usage."""
    body = (await client.post(PATH, json=BODY)).json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    [choice] = body["choices"]
    assert choice.pop("text")
    assert choice == {"index": 0, "logprobs": None, "finish_reason": "length"}
    assert body["usage"]["completion_tokens"] == 6


async def test_token_ids_equal_their_text(client: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    """A prompt as token ids gives what the same prompt as text gives."""
    ids = list(tokenizer.encode(BODY["prompt"]))
    text = (await client.post(PATH, json=BODY)).json()
    same = (await client.post(PATH, json=BODY | {"prompt": ids})).json()
    assert same["choices"] == text["choices"]
    assert same["usage"]["prompt_tokens"] == len(ids)


async def test_many_prompts_are_many_choices(client: httpx.AsyncClient) -> None:
    """A list of prompts answers each as if alone, and the usage is their sum."""
    prompts = ["one", "two words", "three words here"]
    alone = [(await client.post(PATH, json=BODY | {"prompt": p})).json() for p in prompts]
    together = (await client.post(PATH, json=BODY | {"prompt": prompts})).json()
    assert [c["index"] for c in together["choices"]] == [0, 1, 2]
    assert [c["text"] for c in together["choices"]] == [a["choices"][0]["text"] for a in alone]
    assert together["usage"]["completion_tokens"] == 18


async def test_stream_of_many_prompts(client: httpx.AsyncClient) -> None:
    """Streamed choices interleave, each with one finish reason, and make the plain texts."""
    body = BODY | {"prompt": ["one", "two words"]}
    plain = (await client.post(PATH, json=body)).json()
    response = await client.post(
        PATH, json=body | {"stream": True, "stream_options": {"include_usage": True}}
    )
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    *chunks, usage = map(json.loads, lines[:-1])
    for choice in plain["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert [c["finish_reason"] for c in mine].count(None) == len(mine) - 1
    assert usage["usage"] == plain["usage"]
    assert usage["choices"] == []


async def test_default_length_is_openais(client: httpx.AsyncClient) -> None:
    """Without max_tokens this endpoint generates 16."""
    body = (await client.post(PATH, json={"model": "sim", "prompt": "x", "seed": 1})).json()
    assert body["usage"]["completion_tokens"] == 16


async def test_equal_prompts_without_a_seed_get_answers_of_their_own(
    client: httpx.AsyncClient,
) -> None:
    """Who repeats a prompt to sample from it gets samples, not copies."""
    body = {"model": "sim", "prompt": ["a"] * 5, "max_tokens": 8}
    answers = (await client.post(PATH, json=body)).json()["choices"]
    assert len({answer["text"] for answer in answers}) == 5
