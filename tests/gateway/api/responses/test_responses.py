"""`/v1/responses` without a store: events, items, what is asked and what is refused."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from engine.text import Tokenizer
from gateway.api.openai.reading import HEADER
from scheduler.request import FinishReason
from tests.gateway.api.openai.test_tools import CALL, HERMES, THINKING, steps
from tests.gateway.api.responses.serving import (
    BODY,
    PATH,
    checked,
    events_of,
    names,
    serving,
    timeless,
)
from tests.gateway.api.scripted_service import ScriptedService

pytestmark = pytest.mark.anyio

TOOLS = [{"type": "function", "name": name} for name in ("weather", "time")]
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
TEXT = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
THOUGHT = ["content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done"]
CALLED = ["function_call_arguments.delta", "function_call_arguments.done"]


def item(*inner: str) -> list[str]:
    return ["output_item.added", *inner, "output_item.done"]


CASES: list[tuple[str, str, FinishReason, dict[str, Any], list[str], str, list[str]]] = [
    (HERMES, "Hello there.", STOP, {}, item(*TEXT), "completed", ["message"]),
    (HERMES, "Hello the", LENGTH, {}, item(*TEXT), "incomplete", ["message"]),
    (
        HERMES,
        "Let me see.\n" + CALL + CALL,
        STOP,
        {"tools": TOOLS},
        [*item(*TEXT), *item(*CALLED), *item(*CALLED)],
        "completed",
        ["message", "function_call", "function_call"],
    ),
    (
        HERMES,
        CALL + CALL,
        STOP,
        {"tools": TOOLS, "parallel_tool_calls": False},
        item(*CALLED),
        "completed",
        ["function_call"],
    ),
    (
        HERMES,
        CALL[:-20],
        LENGTH,
        {"tools": TOOLS},
        item(*CALLED),
        "incomplete",
        ["function_call"],
    ),
    (
        THINKING,
        "So.\n</think>\n\nHello.",
        STOP,
        {},
        [*item(*THOUGHT), *item(*TEXT)],
        "completed",
        ["reasoning", "message"],
    ),
    (
        THINKING,
        "So.\n</think>\n\n" + CALL,
        STOP,
        {"tools": TOOLS},
        [*item(*THOUGHT), *item(*CALLED)],
        "completed",
        ["reasoning", "function_call"],
    ),
    (THINKING, "So it", LENGTH, {}, item(*THOUGHT), "incomplete", ["reasoning"]),
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
@pytest.mark.parametrize("size", [1, 3, 100])
async def test_streamed_is_plain(
    tokenizer: Tokenizer,
    scripted: ScriptedService,
    case: tuple[str, str, FinishReason, dict[str, Any], list[str], str, list[str]],
    size: int,
) -> None:
    """Events come in OpenAI's order, and what they end with is what is answered whole."""
    source, text, reason, asked, order, status, kinds = case
    scripted.script = steps(tokenizer, text, [size], reason)
    async with serving(tokenizer, scripted, source) as client:
        whole = checked(await client.post(PATH, json=BODY | asked))
        answer = await client.post(PATH, json=BODY | asked | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.text)
    assert names(events) == ["created", "in_progress", *order, status]
    last = events[-1]["response"]
    assert timeless(last) == timeless(whole)
    assert last["status"] == status
    assert [one["type"] for one in last["output"]] == kinds
    # What came in parts is what it ends with, and so is each item as it ended.
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == last["output"]
    for index, one in enumerate(last["output"]):
        parts = [
            event["delta"]
            for event in events
            if event.get("output_index") == index and "delta" in event
        ]
        said = one["arguments"] if one["type"] == "function_call" else one["content"][0]["text"]
        assert "".join(parts) == said
        assert one["status"] == ("incomplete" if one is last["output"][-1] else "completed") or (
            status == "completed" and one["status"] == "completed"
        )
    assert all(event["response"]["id"] == last["id"] for event in events if "response" in event)


async def test_usage_counts_what_was_thought(
    tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """Tokens of thinking are among those of the answer, and told apart."""
    scripted.script = steps(tokenizer, "So.</think>Yes.", [1], STOP)
    async with serving(tokenizer, scripted, THINKING) as client:
        usage = checked(await client.post(PATH, json=BODY))["usage"]
    assert usage["output_tokens_details"]["reasoning_tokens"] > 1
    assert usage["output_tokens"] > usage["output_tokens_details"]["reasoning_tokens"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


async def test_an_answer_of_nothing_is_an_empty_message(
    tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """Whoever reads `output_text` finds an empty text."""
    scripted.script = [((), STOP)]
    async with serving(tokenizer, scripted, HERMES) as client:
        [message] = checked(await client.post(PATH, json=BODY))["output"]
    assert message["content"][0]["text"] == ""
    assert message["status"] == "completed"


async def test_items_are_turns(tokenizer: Tokenizer, scripted: ScriptedService) -> None:
    """Instructions stand first, calls belong to what was said before, results follow them."""
    template = HERMES + "{% for m in messages %}[{{ m.reasoning_content }}]{% endfor %}"
    given = [
        {"role": "developer", "content": "D"},
        {"role": "user", "content": [{"type": "input_text", "text": "U"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "R"}]},
        {"type": "message", "role": "assistant", "content": "A", "id": "msg_1"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"city":"X"}'},
        {"type": "function_call", "call_id": "c2", "name": "f", "arguments": '{"city":"Y"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "two"}],
        },
    ]
    async with serving(tokenizer, scripted, template) as client:
        checked(await client.post(PATH, json=BODY | {"input": given, "instructions": "I"}))
    rendered = tokenizer.decode(list(scripted.requests[0].prompt_token_ids))
    assert rendered.strip() == (
        "system:I;system:D;user:U;assistant:A<tool_call>X<tool_call>Y;tool:onec1;tool:twoc2;"
        "[][][][R][][]"
    )


async def test_what_has_no_effect_is_named(tokenizer: Tokenizer, scripted: ScriptedService) -> None:
    """In a header, by the names that Responses have."""
    asked = {
        "text": {"verbosity": "low", "format": {"type": "text"}},
        "reasoning": {"effort": "high", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "tools": [{"type": "function", "name": "f", "strict": True}],
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "truncation": "disabled",
        "background": False,
    }
    async with serving(tokenizer, scripted, HERMES.replace("reasoning_effort", "x")) as client:
        answer = await client.post(PATH, json=BODY | asked)
    given = checked(answer)
    assert answer.headers[HEADER.decode()].split(", ") == [
        "include.reasoning.encrypted_content",
        "max_tool_calls",
        "prompt_cache_key",
        "reasoning.effort",
        "reasoning.summary",
        "safety_identifier",
        "text.verbosity",
        "tools.strict",
        "user",
    ]
    assert given["metadata"] == {"a": "b"}
    assert given["safety_identifier"] == "s"
    assert given["reasoning"] == {"effort": "high", "summary": None}
    assert given["store"] is False
    assert given["tools"] == [
        {"type": "function", "name": "f", "strict": True, "description": None, "parameters": None}
    ]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"truncation": "auto"}, "truncation"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"store": True}, "store"),
    ({"previous_response_id": "resp_" + "0" * 32}, "previous_response_id"),
    ({"include": ["file_search_call.results"]}, "include"),
    ({"include": ["message.output_text.logprobs"], "tools": TOOLS}, "include"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "no name"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "f", "parameters": 1}]}, "tools[0].parameters"),
    ({"tools": [{"type": "function", "name": "f", "foo": 1}]}, "tools[0].foo"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}},
        "text.format",
    ),
    ({"text": {"foo": 1}}, "text.foo"),
    ({"reasoning": {"effort": 3}}, "reasoning.effort"),
    ({"reasoning": {"effort": "x" * 65}}, "reasoning.effort"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"max_tokens": 3}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"input": []}, "input"),
    ({"input": [{"type": "message", "role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0].type",
    ),
    ({"input": [{"role": "user", "content": "x", "foo": 1}]}, "input[0].foo"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": ""}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
    ({"input": [{"role": "user", "content": "x"}] * 1025}, "input"),
    ({"input": "x " * 300_000}, "input"),
    ({"service_tier": "gold"}, "service_tier"),
    ({"metadata": {"a": "b" * 513}}, "metadata"),
]


@pytest.mark.parametrize(("asked", "param"), REFUSED, ids=[param for _, param in REFUSED])
async def test_what_is_not_done_is_refused_by_name(
    tokenizer: Tokenizer, scripted: ScriptedService, asked: dict[str, Any], param: str
) -> None:
    """With a 400, before anything is computed, streamed or not."""
    async with serving(tokenizer, scripted, HERMES) as client:
        for stream in (False, True):
            refused = await client.post(PATH, json=BODY | {"stream": stream} | asked)
            assert refused.status_code == 400, refused.text
            assert refused.json()["error"]["param"] == param, refused.text
            assert "response_format" not in refused.text
    assert not scripted.requests


async def test_log_probabilities_are_of_the_text(
    demo_client: httpx.AsyncClient,
) -> None:
    """As many streamed as whole, in the deltas and with the part as it ended."""
    asked = {
        "model": "demo",
        "input": "What is Sluice?",
        "max_output_tokens": 8,
        "temperature": 0,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    }
    whole = checked(await demo_client.post(PATH, json=asked))
    [part] = whole["output"][0]["content"]
    assert len(part["logprobs"]) == 8
    assert [len(each["top_logprobs"]) for each in part["logprobs"]] == [2] * 8
    assert "".join(each["token"] for each in part["logprobs"]) == part["text"]
    streamed = events_of((await demo_client.post(PATH, json=asked | {"stream": True})).text)
    assert streamed[-1]["response"]["output"][0]["content"] == [part]
    deltas = [event for event in streamed if event["type"].endswith("output_text.delta")]
    assert [one for event in deltas for one in event["logprobs"]] == part["logprobs"]


@pytest.mark.parametrize(
    ("form", "check"),
    [
        ({"type": "json_object"}, lambda value: isinstance(value, dict)),
        (
            {
                "type": "json_schema",
                "name": "n",
                "strict": True,
                "schema": {
                    "type": "object",
                    "properties": {"a": {"enum": [1, 2]}},
                    "required": ["a"],
                    "additionalProperties": False,
                },
            },
            lambda value: value["a"] in (1, 2),
        ),
    ],
    ids=["object", "schema"],
)
async def test_answers_are_held_to_a_form(
    demo_client: httpx.AsyncClient, form: dict[str, Any], check: Any
) -> None:
    """What is asked for in `text.format` is answered, and given back."""
    asked = {"model": "demo", "input": "JSON", "text": {"format": form}, "temperature": 0}
    response = checked(await demo_client.post(PATH, json=asked | {"max_output_tokens": 400}))
    if response["status"] == "completed":
        assert check(json.loads(response["output"][0]["content"][0]["text"]))
    assert response["text"]["format"]["type"] == form["type"]


async def test_a_stream_that_fails_says_so_as_its_end(
    tokenizer: Tokenizer, scripted: ScriptedService
) -> None:
    """After the first events it is `response.failed`; before any, a status."""
    hello = tokenizer.encode("Hello", add_special_tokens=False)
    scripted.script = [(tuple(hello), None), ((), FinishReason.ERROR)]
    async with serving(tokenizer, scripted, HERMES) as client:
        events = events_of((await client.post(PATH, json=BODY | {"stream": True})).text)
        scripted.script = [((), FinishReason.ERROR)]
        at_once = await client.post(PATH, json=BODY | {"stream": True})
        whole = await client.post(PATH, json=BODY)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    assert events[-1]["response"]["status"] == "failed"
    assert (at_once.status_code, whole.status_code) == (500, 500)
