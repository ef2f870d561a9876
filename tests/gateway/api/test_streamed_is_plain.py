"""What is streamed is what is not, token for token, for every combination of options."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from openai.types import Completion

from engine.text import Tokenizer
from gateway.services.answers import answer_format
from gateway.services.inference.models import ServedModel
from scheduler.request import FinishReason
from tests.gateway.api.anthropic.test_messages import events, gathered
from tests.gateway.api.conftest import MODEL, open_client
from tests.gateway.api.openai.test_tools import (
    CALL,
    HERMES,
    THINKING,
    TOOLS,
    joined,
    plain,
    serving,
    steps,
    without_ids,
)
from tests.gateway.api.responses.serving import checked, events_of, timeless
from tests.gateway.api.scripted_service import ScriptedService

pytestmark = pytest.mark.anyio

Body = dict[str, Any]
CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES = "/v1/responses"
TURNS = [{"role": "user", "content": "Hi"}]
# Text alone, calls beside text, one that is cut, what only looks like one, and UTF-8 of parts.
WRITTEN = (
    "One two three 🜁 four.",
    "See.\n" + CALL + CALL,
    CALL + " two behind",
    CALL[:58],
    "One <tool two three",
)
STOPS = (None, ["two"], ["hree", "never", "is"])
TOOLS_ASKED: tuple[Body, ...] = (
    {},
    {"tools": TOOLS},
    {"tools": TOOLS, "parallel_tool_calls": False},
    {"tools": TOOLS, "tool_choice": "none"},
    {"tools": TOOLS, "tool_choice": "required"},
    {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}},
)
MESSAGE_TOOLS = [{"name": tool["function"]["name"], "input_schema": {}} for tool in TOOLS]
MESSAGE_TOOLS_ASKED: tuple[Body, ...] = (
    {},
    {"tools": MESSAGE_TOOLS},
    {"tools": MESSAGE_TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    {"tools": MESSAGE_TOOLS, "tool_choice": {"type": "none"}},
    {"tools": MESSAGE_TOOLS, "tool_choice": {"type": "any"}},
    {"tools": MESSAGE_TOOLS, "tool_choice": {"type": "tool", "name": "weather"}},
)
RESPONSE_TOOLS = [{"type": "function", **tool["function"]} for tool in TOOLS]
RESPONSE_TOOLS_ASKED: tuple[Body, ...] = (
    {},
    {"tools": RESPONSE_TOOLS},
    {"tools": RESPONSE_TOOLS, "parallel_tool_calls": False},
    {"tools": RESPONSE_TOOLS, "tool_choice": "none"},
    {"tools": RESPONSE_TOOLS, "tool_choice": "required"},
    {"tools": RESPONSE_TOOLS, "tool_choice": {"type": "function", "name": "weather"}},
)
THOUGHTS: tuple[Body | None, ...] = (
    None,
    {"type": "adaptive", "display": "omitted"},
    {"type": "disabled"},
)
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
SCHEMA: Body = {"type": "array", "items": {"enum": ["two", 3]}, "minItems": 2, "maxItems": 4}
FORM: Body = {"type": "json_schema", "schema": SCHEMA}


def chats() -> Iterator[Body]:
    for n, stop, is_scored, tools in itertools.product((1, 3), STOPS, (False, True), TOOLS_ASKED):
        scored = {"logprobs": True, "top_logprobs": n - 1} if is_scored else {}
        yield {"messages": TURNS, "n": n, "stop": stop, "max_tokens": 99} | scored | tools


def messages() -> Iterator[Body]:
    for stop, tools, thinking in itertools.product(STOPS, MESSAGE_TOOLS_ASKED, THOUGHTS):
        asked = {"messages": TURNS, "stop_sequences": stop, "thinking": thinking} | tools
        yield {name: value for name, value in asked.items() if value} | {"max_tokens": 99}


def responses() -> Iterator[Body]:
    efforts: tuple[Body, ...] = ({}, {"reasoning": {"effort": "none"}})
    for tools, effort in itertools.product(RESPONSE_TOOLS_ASKED, efforts):
        for num_top in (None,) if tools else (None, 0, 2):
            scored = {"include": ["message.output_text.logprobs"], "top_logprobs": num_top}
            more = {} if num_top is None else scored
            yield {"input": "Hi", "max_output_tokens": 99} | tools | effort | more


def texts() -> Iterator[Body]:
    for n, stop, logprobs, echo in itertools.product((1, 3), STOPS, (None, 2), (False, True)):
        asked = {"n": n, "stop": stop, "logprobs": logprobs, "echo": echo}
        yield {"prompt": ["Hi", "Ho"], "max_tokens": 9} | asked


def message(text: str) -> Body:
    """A streamed message in the form of one that is whole."""
    return in_common(gathered(events(text)))


def in_common(body: Body) -> Body:
    """What of a message does not differ between two that are alike."""
    for block in body["content"]:
        if block["type"] == "tool_use":
            assert block.pop("id").startswith("toolu_")
            whole = block.pop("x_input_text", None) or json.dumps(block.pop("input"))
            written = block.pop("partial_json", whole)
            block.pop("input", None)
            block["written"] = written if written.endswith('"') else as_value(written)
    usage = body["usage"]
    usage["input_tokens"] += usage.pop("cache_read_input_tokens")
    return {name: value for name, value in body.items() if name != "id"}


def as_value(written: str) -> Any:
    try:
        return json.loads(written)
    except ValueError:
        return written


def response(text: str) -> Body:
    """A streamed response as it ended, if its parts are what it ended with."""
    told = events_of(text)
    ended: Body = told[-1]["response"]
    parts: dict[int, str] = {}
    scored: list[Any] = []
    for event in told:
        if isinstance(event.get("delta"), str):
            at = event["output_index"]
            parts[at] = parts.get(at, "") + event["delta"]
            scored += event.get("logprobs", [])
    for at, item in enumerate(ended["output"]):
        is_call = item["type"] == "function_call"
        said = item["arguments"] if is_call else item["content"][0]["text"]
        assert parts.get(at, "") == said, (item, parts)
    [*_, last] = ended["output"]
    assert scored == (last.get("content") or [{}])[0].get("logprobs", [])
    return ended


async def answer(client: httpx.AsyncClient, path: str, body: Body) -> tuple[Any, Any]:
    """An answer with its usage, and what a stream of the same says."""
    stream = {"stream": True} if path in (MESSAGES, RESPONSES) else WITH_USAGE
    whole = await client.post(path, json=body)
    streamed = await client.post(path, json=body | stream)
    assert whole.status_code == streamed.status_code == 200, whole.text + streamed.text
    if path == MESSAGES:
        return in_common(whole.json()), message(streamed.text)
    if path == RESPONSES:
        return timeless(checked(whole)), timeless(response(streamed.text))
    *_, last = (line for line in streamed.text.split("\n\n") if line.startswith("data: {"))
    usages = [usage(whole.json()), usage(json.loads(last.removeprefix("data: ")))]
    if path == TEXT:
        choices = [texts_of(whole), joined_texts(streamed.text)]
    else:
        choices = [without_ids(plain(whole)), without_ids(joined(streamed.text))]
    first, second = zip(choices, usages, strict=True)
    return first, second


def usage(document: Body) -> Body:
    told: Body = document["usage"]
    told.pop("prompt_tokens_details", None)
    return told


def texts_of(response: httpx.Response) -> list[Body]:
    document = response.json()
    for choice in document["choices"]:
        scores = choice["logprobs"]
        if scores and scores["token_logprobs"][0] is None:
            # A prompt's first token has none; the SDK's types do not know of it.
            scores["token_logprobs"][0], scores["top_logprobs"][0] = 0.0, {}
    Completion.model_validate(document, strict=True)
    return [
        {
            "text": choice["text"],
            "reason": choice["finish_reason"],
            "scored": (choice["logprobs"] or {"tokens": []})["tokens"],
        }
        for choice in response.json()["choices"]
    ]


def joined_texts(text: str) -> list[Body]:
    choices: dict[int, Body] = {}
    for line in text.split("\n\n"):
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                so_far = choices.setdefault(choice["index"], {"text": "", "scored": []})
                so_far["text"] += choice["text"]
                so_far["reason"] = choice["finish_reason"]
                so_far["scored"] += (choice["logprobs"] or {"tokens": []})["tokens"]
    return [choices[index] for index in sorted(choices)]


ASKED = {CHAT: chats, MESSAGES: messages, RESPONSES: responses}


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("source", [HERMES, THINKING], ids=["plain", "thinking"])
async def test_whatever_is_asked_and_written(
    tokenizer: Tokenizer, scripted: ScriptedService, path: str, source: str
) -> None:
    """Text, thoughts, calls, scores, ends and usage, over the whole product of the options."""
    draw = random.Random(5)
    # Log-probabilities go with responses of text alone.
    bodies = [body for body in ASKED[path]() if source == HERMES or "include" not in body]
    reasons = (FinishReason.STOP, FinishReason.LENGTH)
    async with serving(tokenizer, scripted, source) as client:
        for body, written in itertools.product(bodies, WRITTEN):
            reason = draw.choice(reasons)
            sizes = [draw.randint(1, 9) for _ in range(5)]
            text = ("Hm two.</think>\n" + written) if source == THINKING else written
            scripted.script = steps(tokenizer, text, sizes, reason)
            whole, streamed = await answer(client, path, {"model": MODEL} | body)
            assert whole == streamed, (body, text)


async def test_whatever_the_demo_model_says(demo: ServedModel) -> None:
    """A real engine draws the same for both: seeds, stops, choices, scores and forced calls."""
    model = replace(demo, answer_format=answer_format(demo.chat_template))
    drawn = {"model": "demo", "temperature": 0.9, "seed": 11}
    turns: Body = {"messages": TURNS, "max_tokens": 60}
    form: Body = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    held: Sequence[tuple[str, Body]] = [
        (CHAT, turns | {"tools": TOOLS, "tool_choice": "required"}),
        (CHAT, turns | {"response_format": form, "n": 2, "logprobs": True, "stop": [",3"]}),
        (MESSAGES, turns | {"tools": MESSAGE_TOOLS, "tool_choice": {"type": "any"}}),
        (MESSAGES, turns | {"output_config": {"format": FORM}, "stop_sequences": ["two"]}),
        (RESPONSES, {"input": "Hi", "tools": RESPONSE_TOOLS, "tool_choice": "required"}),
        (RESPONSES, {"input": "Hi", "text": {"format": FORM | {"name": "x"}}}),
    ]
    some = random.Random(3).sample([(CHAT, body) for body in chats()], 8)
    some += [(TEXT, body) for body in texts()] + [(RESPONSES, body) for body in responses()][:3]
    async with open_client(model) as client:
        for path, body in (*some, *held):
            bound = "max_output_tokens" if path == RESPONSES else "max_tokens"
            # Anthropic's and responses have no seed.
            asked = {"model": "demo", "temperature": 0} if path in (MESSAGES, RESPONSES) else drawn
            short = body | {bound: min(body.get(bound, 60), 60)}
            whole, streamed = await answer(client, path, asked | short)
            assert whole == streamed, body
