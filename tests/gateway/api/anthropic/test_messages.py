"""`/v1/messages` in Anthropic's shapes: whole, streamed, counted, refused."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from scheduler.errors import Rejected
from scheduler.request import FinishReason, RejectCode
from tests.gateway.api.conftest import KEY
from tests.gateway.api.scripted_service import ScriptedService

pytestmark = pytest.mark.anyio

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
BODY: dict[str, Any] = {
    "model": "sim",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Hello?"}],
}


# What a delta adds to: of blocks, but for `partial_json`, which is an input as text.
FIELDS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}


def events(text: str) -> list[dict[str, Any]]:
    """Parse a stream; each event has a name, which its payload repeats."""
    parsed = []
    for frame in text.split("\n\n"):
        if frame and not frame.startswith(":"):
            name, data = frame.split("\n")
            payload = json.loads(data.removeprefix("data: "))
            assert name == f"event: {payload['type']}"
            parsed.append(payload)
    return parsed


def gathered(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """Put a stream together as Anthropic's SDK does; its order is checked on the way."""
    begin, *middle, delta, stop = stream
    assert (begin["type"], delta["type"], stop) == (
        "message_start",
        "message_delta",
        {"type": "message_stop"},
    )
    message: dict[str, Any] = begin["message"]
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == (
        [],
        None,
        None,
    )
    opened: int | None = None
    for event in middle:
        if event["type"] == "content_block_start":
            assert opened is None
            assert event["index"] == len(message["content"])
            opened = event["index"]
            message["content"].append(event["content_block"])
            continue
        assert event["index"] == opened
        if event["type"] == "content_block_stop":
            opened = None
            continue
        assert event["type"] == "content_block_delta"
        field = FIELDS[event["delta"]["type"]]
        block = message["content"][opened]
        block[field] = block.get(field, "") + event["delta"][field]
    assert opened is None
    message["usage"] |= delta["usage"]
    return message | delta["delta"]


async def test_an_answer_has_anthropics_shape(client: httpx.AsyncClient) -> None:
    """A plain answer has every field of Anthropic's, and its id in both headers."""
    response = await client.post(PATH, json=BODY)
    assert response.status_code == 200, response.text
    body = response.json()
    request_id = response.headers["request-id"]
    assert request_id == response.headers["x-request-id"]
    assert body.pop("id") == request_id.replace("req_", "msg_")
    [block] = body.pop("content")
    assert block.pop("text")
    assert block == {"type": "text", "citations": None}
    assert body["usage"].pop("input_tokens") > 1
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "sim",
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": {
            "output_tokens": 9,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "output_tokens_details": {"thinking_tokens": 0},
            "service_tier": "standard",
        },
    }


async def test_a_stream_is_the_same_message_in_anthropics_order(
    demo_client: httpx.AsyncClient,
) -> None:
    """Events are named and in order, blocks without gaps, and the whole is the plain answer."""
    body = BODY | {"model": "demo", "temperature": 0, "max_tokens": 24}
    whole = (await demo_client.post(PATH, json=body)).json()
    streamed = await demo_client.post(PATH, json=body | {"stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    message = gathered(events(streamed.text))
    for each in (whole, message):
        # What was in the cache by then, was not before.
        usage = each["usage"]
        usage["input_tokens"] += usage.pop("cache_read_input_tokens")
        each.pop("id")
    assert message == whole


async def test_what_was_cached_is_no_input(demo_client: httpx.AsyncClient) -> None:
    """A prompt that was seen before is read from the cache, and both sum to what is counted."""
    turns = [{"role": "user", "content": "Tell me about queues. " * 30}]
    body = {"model": "demo", "max_tokens": 1, "messages": turns}
    first = (await demo_client.post(PATH, json=body)).json()["usage"]
    again = (await demo_client.post(PATH, json=body)).json()["usage"]
    assert first["cache_read_input_tokens"] == 0
    assert again["cache_read_input_tokens"] > 0
    assert again["input_tokens"] + again["cache_read_input_tokens"] == first["input_tokens"]
    del body["max_tokens"]
    counted = await demo_client.post(COUNT, json=body)
    assert counted.json() == {"input_tokens": first["input_tokens"]}


@pytest.mark.parametrize("streams", [False, True])
async def test_a_stop_sequence_is_told(demo_client: httpx.AsyncClient, streams: bool) -> None:
    """The sequence that ended an answer is named, and is no part of it."""
    body = BODY | {"model": "demo", "temperature": 0, "max_tokens": 24}
    text = (await demo_client.post(PATH, json=body)).json()["content"][0]["text"]
    stop = text[6:9]
    body |= {"stop_sequences": ["never said", stop], "stream": streams}
    response = await demo_client.post(PATH, json=body)
    message = gathered(events(response.text)) if streams else response.json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", stop)
    assert message["content"][0]["text"] == text[: text.index(stop)]


async def test_an_answer_goes_on_with_a_last_turn_of_the_assistant(
    demo_client: httpx.AsyncClient,
) -> None:
    """What is begun is not said again, and all that follows is as if the model had begun so."""
    turns = [{"role": "user", "content": "What is Sluice?"}]
    body = {"model": "demo", "max_tokens": 16, "temperature": 0, "messages": turns}
    whole = (await demo_client.post(PATH, json=body)).json()["content"][0]["text"]
    for first in (whole.split()[0], " ".join(whole.split()[:3])):
        begun = [*turns, {"role": "assistant", "content": [{"type": "text", "text": first}]}]
        rest = (await demo_client.post(PATH, json=body | {"messages": begun})).json()
        assert (first + rest["content"][0]["text"])[: len(whole) - 8] == whole[:-8]
    nothing = [*turns, {"role": "assistant", "content": "  "}]
    same = (await demo_client.post(PATH, json=body | {"messages": nothing})).json()
    assert same["content"][0]["text"] == whole


async def test_ways_to_say_the_same_are_one_prompt(demo_client: httpx.AsyncClient) -> None:
    """Blocks or a text, a system prompt before the turns or among them, one turn or two."""

    async def counted(**body: Any) -> int:
        response = await demo_client.post(COUNT, json={"model": "demo"} | body)
        assert response.status_code == 200, response.text
        tokens: int = response.json()["input_tokens"]
        return tokens

    def block(text: str) -> dict[str, Any]:
        return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}

    hello = {"role": "user", "content": "Hello?\n\nYou there?"}
    plain = await counted(system="Be brief.\n\nBe kind.", messages=[hello])
    assert plain > await counted(messages=[hello])
    for system, *turns in (
        ([block("Be brief."), block("Be kind.")], hello),
        ("Be brief.", hello, {"role": "system", "content": "Be kind."}),
        (
            "Be brief.\n\nBe kind.",
            {"role": "user", "content": [block("Hel"), block("lo?")]},
            {"role": "user", "content": "You there?"},
        ),
    ):
        assert await counted(system=system, messages=turns) == plain


async def test_both_headers_open_and_neither_is_anthropics_refusal(
    client: httpx.AsyncClient,
) -> None:
    """A key by either header, with any version and beta; without one the shape is Anthropic's."""
    odd = {"anthropic-version": "1999-01-01", "anthropic-beta": "x,y", "authorization": ""}
    response = await client.post(PATH, json=BODY, headers=odd | {"x-api-key": KEY})
    assert response.status_code == 200
    response = await client.post(PATH, json=BODY, headers=odd)
    assert response.status_code == 401
    assert response.json() == {
        "type": "error",
        "error": {"type": "authentication_error", "message": response.json()["error"]["message"]},
        "request_id": response.headers["request-id"],
    }


@pytest.mark.parametrize(
    ("changes", "status", "kind", "named"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": 9999}, 400, "invalid_request_error", "messages"),
        ({"model": "gpt-9"}, 404, "not_found_error", "gpt-9"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "tool", "content": ""}]}, 400, "invalid_request_error", "role"),
        ({"temperature": 3}, 400, "invalid_request_error", "temperature"),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop_sequences"),
        ({"n": 2}, 400, "invalid_request_error", "n"),
        ({"tools": [{"name": "f"}]}, 400, "invalid_request_error", "tools"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice"),
        ({"thinking": {"type": "enabled"}}, 400, "invalid_request_error", "thinking.budget_tokens"),
        ({"thinking": {"type": "hard"}}, 400, "invalid_request_error", "thinking.type"),
        ({"output_config": {"format": {}}}, 400, "invalid_request_error", "output_config.format"),
        ({"output_config": {"odd": 1}}, 400, "invalid_request_error", "output_config.odd"),
        ({"mcp_servers": [{}]}, 400, "invalid_request_error", "mcp_servers"),
        ({"metadata": {"user_id": 7}}, 400, "invalid_request_error", "metadata.user_id"),
        ({"service_tier": "best"}, 400, "invalid_request_error", "service_tier"),
    ],
)
async def test_what_is_not_done_is_refused_by_name(
    client: httpx.AsyncClient, changes: dict[str, Any], status: int, kind: str, named: str
) -> None:
    """A refusal has Anthropic's type, and its message names the parameter."""
    body = {name: value for name, value in (BODY | changes).items() if value is not None}
    response = await client.post(PATH, json=body)
    assert response.status_code == status, response.text
    error = response.json()
    assert error["type"] == "error"
    assert error["error"]["type"] == kind
    assert named in error["error"]["message"]
    assert error["request_id"] == response.headers["request-id"]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {}},
        {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        {"type": "tool_result", "tool_use_id": ""},
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]},
        {"type": "tool_result", "tool_use_id": "t", "content": 7},
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text"},
        {"text": "x"},
        {"type": "text", "text": "x", "odd": 1},
    ],
)
async def test_a_block_that_is_not_read_is_refused_by_its_place(
    client: httpx.AsyncClient, block: dict[str, Any]
) -> None:
    """Nothing of a turn is dropped: what is no text block is a 400 that says where it is."""
    turns = [{"role": "user", "content": [{"type": "text", "text": "hi"}, block]}]
    response = await client.post(PATH, json=BODY | {"messages": turns})
    assert response.status_code == 400
    assert "messages[0].content[1]" in response.json()["error"]["message"]


async def test_what_has_no_effect_is_named(client: httpx.AsyncClient) -> None:
    """What asks for nothing is silent; what was taken without effect is in a header."""
    nothing = {"thinking": {"type": "disabled"}, "tools": [], "tool_choice": {"type": "auto"}}
    response = await client.post(PATH, json=BODY | nothing)
    assert "x-sluice-ignored" not in response.headers
    something = {
        "thinking": {"type": "adaptive"},
        "tools": [{"name": "f", "input_schema": {}, "cache_control": {"type": "ephemeral"}}],
        "tool_choice": {"type": "none"},
        "metadata": {"user_id": "u"},
        "cache_control": {"type": "ephemeral"},
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]},
            {"role": "user", "content": "ho"},
        ],
    }
    response = await client.post(PATH, json=BODY | something)
    assert response.status_code == 200, response.text
    assert response.headers["x-sluice-ignored"].split(", ") == [
        "cache_control",
        "messages.content.thinking",
        "metadata",
        "thinking",
        "tools.cache_control",
    ]


async def test_no_room_is_anthropics_overload(
    scripted: ScriptedService, scripted_client: httpx.AsyncClient
) -> None:
    """Where our capacity is what lacks, an SDK sees 529 `overloaded_error`, and when to retry."""
    scripted.refusal = Rejected("full", code=RejectCode.OVERLOADED, retry_after_s=2.0)
    response = await scripted_client.post(PATH, json=BODY)
    assert response.status_code == 529
    assert response.json()["error"]["type"] == "overloaded_error"
    assert response.headers["retry-after"] == "2"


async def test_a_stream_that_fails_ends_with_an_error_event(
    scripted: ScriptedService, scripted_client: httpx.AsyncClient
) -> None:
    """After its headers a failure is an `error` event, and no `message_stop` follows it."""
    scripted.script = [((5,), None), ((), FinishReason.ERROR)]
    response = await scripted_client.post(PATH, json=BODY | {"stream": True})
    *_, last = events(response.text)
    assert last["type"] == "error"
    assert last["error"]["type"] == "api_error"
    assert last["request_id"] == response.headers["request-id"]


async def test_paths_that_are_not_there_speak_anthropics_words(client: httpx.AsyncClient) -> None:
    """404 and 405 below `/v1/messages` have its shape; a path beside it has OpenAI's."""
    for method, path in (("GET", f"{PATH}/nothing"), ("DELETE", PATH)):
        error = (await client.request(method, path)).json()
        assert (error["type"], set(error)) == ("error", {"type", "error", "request_id"})
    assert set((await client.get("/v1/messages2")).json()) == {"error"}
