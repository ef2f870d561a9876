"""The sampling surface through the API, on the real engine."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any
from uuid import UUID

import httpx
import pytest

from engine.text import Tokenizer

pytestmark = pytest.mark.anyio

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "What is Sluice?"}]


async def ask(client: httpx.AsyncClient, path: str, **fields: Any) -> Any:
    """Ask the demo model; chats get a question, completions a prompt."""
    what = {"messages": MESSAGES} if path == CHAT else {"prompt": "The scheduler"}
    body = {"model": "demo", "max_tokens": 24, "seed": 11} | what | fields
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    if not body.get("stream"):
        return response.json()
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def assembled(chunks: list[Any], index: int) -> dict[str, Any]:
    """Put a streamed choice together as a plain answer has it."""
    mine = [c["choices"][0] for c in chunks if c["choices"] and c["choices"][0]["index"] == index]
    parts = [c["logprobs"] for c in mine if c["logprobs"] is not None]
    fields = {name for part in parts for name in part if isinstance(part[name], list)}
    return {
        "text": "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in mine),
        "logprobs": {
            name: list(itertools.chain.from_iterable(part[name] for part in parts))
            for name in fields
        },
        "finish_reason": [c["finish_reason"] for c in mine if c["finish_reason"]],
    }


def alike(one: Any, other: Any) -> bool:
    """Compare JSON; numbers may differ by rounding, as a batch of another size computes them."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, abs_tol=1e-3)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stop", [None, "e", ["the", " a"]], ids=str)
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("logprobs", [False, True], ids=["plain", "logprobs"])
async def test_streamed_equals_plain(
    demo_client: httpx.AsyncClient, path: str, stop: Any, n: int, logprobs: bool
) -> None:
    """For every combination of stop, n and logprobs, streaming changes the framing alone."""
    fields: dict[str, Any] = {"stop": stop, "n": n, "temperature": 1.2}
    if logprobs:
        fields |= {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
    plain = await ask(demo_client, path, **fields)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = await ask(demo_client, path, **fields, **options)
    assert len(plain["choices"]) == n
    for choice in plain["choices"]:
        streamed = assembled(chunks, choice["index"])
        text = choice["text"] if path == TEXT else choice["message"]["content"]
        assert streamed["text"] == text
        assert streamed["finish_reason"] == [choice["finish_reason"]]
        if logprobs:
            lists = {k: v for k, v in choice["logprobs"].items() if isinstance(v, list)}
            assert alike(streamed["logprobs"], lists)
        else:
            assert choice["logprobs"] is None
    for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert chunks[-1]["usage"][field] == plain["usage"][field]


async def test_first_of_n_choices_is_the_only_one_alone(demo_client: httpx.AsyncClient) -> None:
    """A seed gives the same first choice whatever n, and the others differ from it."""
    alone = await ask(demo_client, CHAT, temperature=2)
    four = await ask(demo_client, CHAT, temperature=2, n=4)
    texts = [choice["message"]["content"] for choice in four["choices"]]
    assert texts[0] == alone["choices"][0]["message"]["content"]
    assert len(set(texts)) == 4
    assert four["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_long_answer_is_as_a_short_one(
    demo_client: httpx.AsyncClient, shaped_on_threads: list[UUID], path: str
) -> None:
    """Log-probabilities by the hundred are spelled on a thread, and alike, whole and streamed."""
    top = {"logprobs": True, "top_logprobs": 20} if path == CHAT else {"logprobs": 5}
    fields = {"n": 2, "temperature": 1.2, "ignore_eos": True, "max_tokens": 64, **top}
    body = await ask(demo_client, path, **fields)
    assert len(shaped_on_threads) == 1
    chunks = await ask(demo_client, path, stream=True, **fields)
    for index, choice in enumerate(body["choices"]):
        parts = assembled(chunks, index)["logprobs"]
        assert alike({name: choice["logprobs"][name] for name in parts}, parts)


async def test_chat_logprobs_have_openais_shape(
    demo_client: httpx.AsyncClient, tokenizer: Tokenizer
) -> None:
    """Each token has its text, bytes, logprob and the likeliest alternatives in order."""
    body = await ask(demo_client, CHAT, temperature=0, logprobs=True, top_logprobs=5)
    choice = body["choices"][0]
    content = choice["logprobs"]["content"]
    assert choice["logprobs"]["refusal"] is None
    assert (
        bytes(itertools.chain.from_iterable(t["bytes"] for t in content)).decode()
        == (choice["message"]["content"])
    )
    for token in content:
        top = [alternative["logprob"] for alternative in token["top_logprobs"]]
        assert len(top) == 5
        assert top == sorted(top, reverse=True)
        assert token["logprob"] == top[0]
        assert sum(map(math.exp, top)) <= 1.0001


@pytest.mark.parametrize("n", [1, 2])
async def test_an_answer_that_ends_at_once_has_log_probabilities_too(
    demo_client: httpx.AsyncClient, n: int
) -> None:
    """A chat's are none, as its text is; a completion's are the end token's, and its echo's."""
    ends = {"logit_bias": {"1": 100}, "n": n}
    chat = await ask(demo_client, CHAT, logprobs=True, top_logprobs=2, **ends)
    for choice in chat["choices"]:
        assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
        assert choice["logprobs"] == {"content": [], "refusal": None}
    for echo in (False, True):
        text = await ask(demo_client, TEXT, prompt=[500, 501], logprobs=2, echo=echo, **ends)
        streamed = await ask(
            demo_client, TEXT, prompt=[500, 501], logprobs=2, echo=echo, stream=True, **ends
        )
        for index, choice in enumerate(text["choices"]):
            assert choice["finish_reason"] == "stop"
            assert len(choice["logprobs"]["token_logprobs"]) == 1 + 2 * echo
            assert alike(choice["logprobs"], assembled(streamed, index)["logprobs"])


async def test_echo_scores_a_text(demo_client: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    """`echo` with `logprobs` scores the prompt, as a loglikelihood evaluation needs it."""
    prompt = "Sluice is a gateway. The scheduler decides at every step."
    body = await ask(
        demo_client, TEXT, prompt=prompt, max_tokens=1, echo=True, logprobs=1, temperature=0
    )
    choice = body["choices"][0]
    assert choice["text"].startswith(prompt)
    logprobs = choice["logprobs"]
    num_prompt_tokens = len(tokenizer.encode(prompt))
    assert len(logprobs["tokens"]) == num_prompt_tokens + 1
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    for logprob, top in zip(
        logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True
    ):
        assert logprob <= max(top.values()) + 1e-6
    # The text is predicted better than a shuffled one: these are scores, not noise.
    shuffled = "step every at decides scheduler The gateway. a is Sluice"
    worse = await ask(
        demo_client, TEXT, prompt=shuffled, max_tokens=1, echo=True, logprobs=1, temperature=0
    )
    score = sum(logprobs["token_logprobs"][1:num_prompt_tokens])
    other = worse["choices"][0]["logprobs"]["token_logprobs"]
    assert score > sum(other[1:-1])


async def test_echo_repeats_token_ids_as_text(demo_client: httpx.AsyncClient) -> None:
    """A prompt of token ids is echoed as the text it stands for, streaming too."""
    plain = await ask(demo_client, TEXT, prompt=[500, 501, 502], echo=True, temperature=0)
    chunks = await ask(
        demo_client, TEXT, prompt=[500, 501, 502], echo=True, temperature=0, stream=True
    )
    bare = await ask(demo_client, TEXT, prompt=[500, 501, 502], temperature=0)
    text = plain["choices"][0]["text"]
    assert text.endswith(bare["choices"][0]["text"])
    assert len(text) > len(bare["choices"][0]["text"])
    assert assembled(chunks, 0)["text"] == text


async def test_logit_bias_forbids_and_forces(
    demo_client: httpx.AsyncClient, tokenizer: Tokenizer
) -> None:
    """A bias of −100 keeps a token out, one of +100 leaves nothing else."""
    [wanted] = tokenizer.encode(" tenant", add_special_tokens=False)[-1:]
    forced = await ask(
        demo_client, TEXT, logit_bias={str(wanted): 100}, max_tokens=3, ignore_eos=True
    )
    assert forced["choices"][0]["text"] == tokenizer.decode([wanted]) * 3 or (
        forced["choices"][0]["text"].split() == [tokenizer.decode([wanted]).strip()] * 3
    )
    free = await ask(demo_client, CHAT, temperature=0, logprobs=True)
    first = free["choices"][0]["logprobs"]["content"][0]["token"]
    ids = [i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == first.encode()]
    bias = {str(i): -100 for i in ids}
    barred = await ask(demo_client, CHAT, temperature=0, logprobs=True, logit_bias=bias)
    assert barred["choices"][0]["logprobs"]["content"][0]["token"] != first


async def test_penalties_end_repetition(demo_client: httpx.AsyncClient) -> None:
    """A frequency penalty makes a long greedy text repeat itself less."""

    async def distinct(**fields: Any) -> int:
        body = await ask(
            demo_client, TEXT, temperature=0, max_tokens=120, ignore_eos=True, logprobs=0, **fields
        )
        return len(set(body["choices"][0]["logprobs"]["tokens"]))

    assert await distinct(frequency_penalty=2) > await distinct()
    assert await distinct(repetition_penalty=1.5) > await distinct()
    assert await distinct(presence_penalty=2) > await distinct()


async def test_min_tokens_outlasts_the_end_token(demo_client: httpx.AsyncClient) -> None:
    """With min_tokens, neither the end token nor a stop string ends a text before."""
    short = await ask(demo_client, CHAT, temperature=0, max_tokens=100)
    length = short["usage"]["completion_tokens"]
    assert length < 60
    longer = await ask(demo_client, CHAT, temperature=0, max_tokens=100, min_tokens=length + 20)
    assert longer["usage"]["completion_tokens"] >= length + 20
    stopped = await ask(demo_client, CHAT, temperature=0, max_tokens=40, min_tokens=10, stop=" ")
    assert stopped["usage"]["completion_tokens"] >= 10
