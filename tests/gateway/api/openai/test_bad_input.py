"""What bad input gets: OpenAI's error shape, the field's name, and nothing computed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import httpx
import pytest

from gateway.services.inference.models import ServedModel

pytestmark = pytest.mark.anyio

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def check(response: httpx.Response, status: int) -> dict[str, Any]:
    """Assert the shape that every error has, and return its content."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert not any(leak in response.text for leak in ("Traceback", "0x", "/gateway/", "msgspec"))
    assert response.headers["x-request-id"].startswith("req_")
    return error


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b'{"model": "\xff"}',
        b'{"model": "\\ud800"}',
        b'{"model": "sim", "temperature": NaN}',
        b'{"model": "sim", "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"model": "sim", "temperature": ' + b"9" * 5000 + b"}",
        b'{"model": "sim", "messages": ' + b"[" * 100_000,
        b'{"model": "sim", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model": "sim", "tool_choice": ' + b'{"a":' * 100_000,
        b'{"model": "sim"} trailing',
        b'{"model": "sim"',
    ],
    ids=lambda body: repr(body[:40]),
)
async def test_body_that_is_no_request(client: httpx.AsyncClient, path: str, body: bytes) -> None:
    """A body that cannot be decoded is a 400."""
    check(await client.post(path, content=body), 400)


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"max_tokens": 2**64}, "max_tokens"),
        ({"max_tokens": "8"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 10**9}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"seed": 2**63}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": 2**31}, "n"),
        ({"n": True}, "n"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": "x" * 257}, "stop"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids[0]"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1.5}, "repetition_penalty"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"min_tokens": 1}, "min_tokens"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"100000": 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"service_tier": "turbo"}, "service_tier"),
        ({"service_tier": "batch"}, "service_tier"),
        ({"service_tier": 1}, "service_tier"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"chat_template_kwargs": {"a": [1]}}, "chat_template_kwargs"),
        ({"reasoning_effort": 5}, "reasoning_effort"),
        ({"store": True}, "store"),
        ({"model": ""}, "model"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"logit_bias": {"5": "x"}}, "logit_bias"),
        ({"messages": [MESSAGES[0] | {"name": "b" * 257}]}, "messages[0].name"),
        ({"messages": [MESSAGES[0] | {"tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": 5, "content": "x"}]}, "messages[0].role"),
        ({"messages": [*MESSAGES, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0]",
        ),
    ],
    ids=str,
)
async def test_bad_chat_field_is_named(
    client: httpx.AsyncClient, model: ServedModel, field: dict[str, Any], param: str
) -> None:
    """A field that is out of range or of the wrong kind is a 400 with its name in `param`."""
    body = {"model": "sim", "messages": MESSAGES} | field
    error = check(await client.post(CHAT, json=body), 400)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert model.service.snapshot().running == 0


@pytest.mark.parametrize("seed", [-(2**63) - 1, 2**63, 2**64 - 1])
async def test_a_seed_that_is_too_large_is_told_its_range(
    client: httpx.AsyncClient, seed: int
) -> None:
    """It has 64 bits with its sign, which "64 bits" alone does not say."""
    body = {"model": "sim", "messages": MESSAGES, "seed": seed}
    error = check(await client.post(CHAT, json=body), 400)
    assert f"between {-(2**63)} and {2**63 - 1}" in error["message"]


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [5, -1]}, "prompt[1]"),
        ({"prompt": [10**6]}, "prompt[0]"),
        ({"prompt": [1, 2**31]}, "prompt[1]"),
        ({"prompt": [[5], [2**40]]}, "prompt[1][0]"),
        ({"prompt": [[5], [5, 10**6]]}, "prompt[1][1]"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": "x", "n": 9}, "n"),
        ({"prompt": ["x"] * 100, "n": 2}, "n"),
        ({"prompt": [[1], "a"]}, "prompt[1]"),
        ({"prompt": ["a", [1]]}, "prompt[1]"),
        ({"prompt": "x", "logprobs": 6}, "logprobs"),
        ({"prompt": "x", "model": ""}, "model"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "logprobs": 3}, "logprobs"),
    ],
    ids=str,
)
async def test_bad_completion_field_is_named(
    client: httpx.AsyncClient, field: dict[str, Any], param: str
) -> None:
    """The prompt's forms are told apart, and a bad item is named by its place."""
    error = check(await client.post(TEXT, json={"model": "sim"} | field), 400)
    assert error["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        {"messages": MESSAGES, "max_tokens": 256},
        {"messages": [{"role": "user", "content": "word " * 400}]},
        {"messages": [{"role": "user", "content": "x" * 1_000_000}]},
    ],
    ids=["prompt and max_tokens", "prompt", "huge prompt"],
)
async def test_prompt_over_the_context_is_refused_before_compute(
    client: httpx.AsyncClient, model: ServedModel, body: dict[str, Any]
) -> None:
    """What cannot fit the context is a 400 `context_length_exceeded`, and nothing is queued."""
    error = check(await client.post(CHAT, json={"model": "sim"} | body), 400)
    assert error["code"] == "context_length_exceeded"
    # What LiteLLM knows it by.
    assert error["message"].startswith("This model's maximum context length is 256 tokens.")
    snapshot = model.service.snapshot()
    assert snapshot.running == snapshot.queued == 0


async def test_unknown_model_is_404(client: httpx.AsyncClient) -> None:
    """A model that is not served is `model_not_found`, in a body and in a path."""
    for response in (
        await client.post(CHAT, json={"model": "nope", "messages": MESSAGES}),
        await client.get("/v1/models/nope"),
    ):
        error = check(response, 404)
        assert error["code"] == "model_not_found"
        assert error["param"] == "model"


async def test_large_body_is_413(client: httpx.AsyncClient) -> None:
    """A body over 4 MiB is refused."""
    check(await client.post(CHAT, content=b" " * ((4 << 20) + 1)), 413)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer nope"},
        {"authorization": "Basic dGVzdC1rZXk="},
        {"authorization": "Bearer \xff"},
        {"x-api-key": "nope", "authorization": ""},
    ],
    ids=str,
)
async def test_one_401_for_every_cause(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    """Whatever is wrong with a credential, the answer is the same."""
    raw = {key: value.encode("latin-1") for key, value in headers.items()}
    response = await client.post(CHAT, json={}, headers=raw)
    error = check(response, 401)
    assert error["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"


async def test_key_in_the_other_header(client: httpx.AsyncClient) -> None:
    """`x-api-key` is as good as `Authorization`, but the two must not differ."""
    alone = await client.get("/v1/models", headers={"authorization": "", "x-api-key": "test-key"})
    assert alone.status_code == 200
    check(await client.get("/v1/models", headers={"x-api-key": "other"}), 400)
    twice = [("authorization", "Bearer other"), ("authorization", "Bearer test-key")]
    check(await client.get("/v1/models", headers=twice), 400)


async def test_unknown_route_and_method(client: httpx.AsyncClient) -> None:
    """The router's own refusals have the same shape."""
    assert check(await client.get("/v1/nope"), 404)["code"] == "not_found"
    assert check(await client.get(CHAT), 405)["code"] == "method_not_allowed"
    assert check(await client.post(f"{CHAT}/"), 404)["code"] == "not_found"


async def test_bug_of_ours_is_a_blank_500(
    client: httpx.AsyncClient, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected exception answers with nothing of itself."""

    def broken(request: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(model.service, "submit", broken)
    response = await client.post(CHAT, json={"model": "sim", "messages": MESSAGES})
    error = check(response, 500)
    assert error["code"] == "internal_error"
    assert "secret" not in response.text


async def test_a_large_body_is_read_on_a_thread(
    client: httpx.AsyncClient, shaped_on_threads: list[UUID]
) -> None:
    """Its answer and its refusals are those of a short one, and no refusal repeats a long name."""
    filler = {"user": {"filler": "x" * 40_000}}
    good = {"model": "sim", "prompt": "Hi", "max_tokens": 2}
    short = (await client.post("/v1/completions", json=good)).json()
    assert shaped_on_threads == []
    large = (await client.post("/v1/completions", json=good | filler)).json()
    assert large["choices"][0]["finish_reason"] == short["choices"][0]["finish_reason"]
    for bad, param in (({"temperature": 9}, "temperature"), ({"n": "x"}, "n")):
        refused = await client.post("/v1/completions", json=good | filler | bad)
        assert check(refused, 400)["param"] == param
    assert len(shaped_on_threads) == 3
    named = await client.post("/v1/completions", json=good | {"x" * 100_000: 1})
    assert check(named, 400)["code"] == "unknown_parameter"
    assert len(named.content) < 2_000


async def test_a_list_of_prompts_is_counted_before_it_is_read(client: httpx.AsyncClient) -> None:
    """Too many are refused whatever they hold; token ids longer than the context, too."""
    for prompt, text in (([[1]] * 129, "128"), ([["x"]] * 129, "128"), ([1] * 5_000, "too long")):
        refused = await client.post("/v1/completions", json={"model": "sim", "prompt": prompt})
        assert text in check(refused, 400)["message"]
