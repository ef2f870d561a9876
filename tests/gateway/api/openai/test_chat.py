"""Chat completions in OpenAI's shapes."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "sim",
    "messages": [{"role": "user", "content": "Hello?"}],
    "max_tokens": 9,
    "seed": 7,
}


def events(text: str) -> list[Any]:
    """Parse a stream of `data:` events; `[DONE]` stays a string."""
    lines = [line for line in text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [
        line[6:] if line == "data: [DONE]" else json.loads(line.removeprefix("data: "))
        for line in lines
    ]


async def test_answer_has_openais_shape(client: httpx.AsyncClient) -> None:
    """A plain answer carries every field of OpenAI's, the null ones included."""
    response = await client.post(PATH, json=BODY)
    assert response.status_code == 200, response.text
    body = response.json()
    text = body["choices"][0]["message"]["content"]
    assert text
    assert body["id"].startswith("chatcmpl-")
    assert response.headers["x-request-id"].removeprefix("req_") in body["id"]
    prompt_tokens = body["usage"]["prompt_tokens"]
    assert prompt_tokens > 1
    del body["id"], body["created"]
    assert body == {
        "object": "chat.completion",
        "model": "sim",
        "service_tier": "default",
        "system_fingerprint": "fp_test",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": text,
                    "refusal": None,
                    "annotations": [],
                },
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 9,
            "total_tokens": prompt_tokens + 9,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
    }


async def test_stream_has_openais_shape(client: httpx.AsyncClient) -> None:
    """A stream is one role delta, text, one finish reason, the usage, `[DONE]`."""
    body = BODY | {"stream": True, "stream_options": {"include_usage": True}}
    response = await client.post(PATH, json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, usage, done = events(response.text)
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 9
    assert all(chunk["usage"] is None for chunk in chunks)
    assert len({chunk["id"] for chunk in [*chunks, usage]}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert all(set(delta) == {"content"} for delta in deltas[1:-1])
    assert deltas[-1] == {}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert all(chunk["choices"][0]["logprobs"] is None for chunk in chunks)


async def test_stream_without_usage_has_no_usage_field(client: httpx.AsyncClient) -> None:
    """Nobody asked for usage, so no chunk mentions it."""
    response = await client.post(PATH, json=BODY | {"stream": True})
    *chunks, done = events(response.text)
    assert done == "[DONE]"
    assert all("usage" not in chunk for chunk in chunks)


async def test_streamed_text_is_the_plain_text(client: httpx.AsyncClient) -> None:
    """With a seed, streaming changes the framing and nothing else."""
    plain = (await client.post(PATH, json=BODY)).json()["choices"][0]["message"]["content"]
    response = await client.post(PATH, json=BODY | {"stream": True})
    chunks = events(response.text)[:-1]
    streamed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert streamed == plain


async def test_stop_string_ends_the_text_before_it(client: httpx.AsyncClient) -> None:
    """The text ends right before the first stop string, with the reason `stop`."""
    whole = (await client.post(PATH, json=BODY)).json()["choices"][0]["message"]["content"]
    stop = whole[3:6]
    choice = (await client.post(PATH, json=BODY | {"stop": stop})).json()["choices"][0]
    assert choice["message"]["content"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"


async def test_second_prompt_is_cached_within_the_tenant(client: httpx.AsyncClient) -> None:
    """A prompt that was computed before reports its shared tokens."""
    body = BODY | {"messages": [{"role": "user", "content": "word " * 40}]}
    first = (await client.post(PATH, json=body)).json()["usage"]
    second = (await client.post(PATH, json=body)).json()["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] >= 16
    assert second["prompt_tokens"] == first["prompt_tokens"]


async def test_content_parts_equal_a_string(client: httpx.AsyncClient) -> None:
    """Text parts are read as their concatenation, `developer` as `system`."""
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo?"}]
    one = {"messages": [{"role": "developer", "content": "Be brief."}, *BODY["messages"]]}
    two = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": parts},
        ]
    }
    texts = [
        (await client.post(PATH, json=BODY | body)).json()["choices"][0]["message"]["content"]
        for body in (one, two)
    ]
    assert texts[0] == texts[1]


async def test_context_bounds_the_answer_without_max_tokens(client: httpx.AsyncClient) -> None:
    """Without a bound, an answer may fill the context and ends with `length`."""
    body = {key: value for key, value in BODY.items() if key != "max_tokens"}
    usage = (await client.post(PATH, json=body)).json()["usage"]
    assert usage["total_tokens"] == 256


async def test_own_answer_may_be_sent_back(client: httpx.AsyncClient) -> None:
    """A conversation goes on with the answer as it came, and with the SDK's own null fields."""
    answer = (await client.post(PATH, json=BODY)).json()["choices"][0]["message"]
    dumped = answer | {"audio": None, "function_call": None, "tool_calls": None}
    for message in (answer, dumped):
        messages = [*BODY["messages"], message, {"role": "user", "content": "And then?"}]
        response = await client.post(PATH, json=BODY | {"messages": messages})
        assert response.status_code == 200, response.text


async def test_neutral_values_ask_for_nothing(client: httpx.AsyncClient) -> None:
    """What asks for nothing is not refused, whether or not this server could do more."""
    neutral = {
        "n": 1,
        "tools": [],
        "tool_choice": "none",
        "functions": None,
        "function_call": "none",
        "modalities": ["text"],
        "response_format": {"type": "text"},
        "service_tier": "auto",
        "store": False,
        "logprobs": False,
        "presence_penalty": 0,
        "logit_bias": {},
        "stream_options": None,
        "metadata": {"run": "1"},
        "user": "u",
    }
    response = await client.post(PATH, json=BODY | neutral)
    assert response.status_code == 200, response.text


async def test_usage_so_far_is_in_every_chunk_if_asked_for(client: httpx.AsyncClient) -> None:
    """`continuous_usage_stats` counts up to what the last chunk says."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = BODY | {"stream": True, "stream_options": options}
    *chunks, done = events((await client.post(PATH, json=body)).text)
    assert done == "[DONE]"
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2] > 0
