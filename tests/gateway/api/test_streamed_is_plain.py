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
from tests.gateway.api.scripted_service import ScriptedService

pytestmark = pytest.mark.anyio

Body = dict[str, Any]
CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
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
)
MESSAGE_TOOLS = [{"name": tool["function"]["name"], "input_schema": {}} for tool in TOOLS]
MESSAGE_TOOLS_ASKED: tuple[Body, ...] = (
    {},
    {"tools": MESSAGE_TOOLS},
    {"tools": MESSAGE_TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    {"tools": MESSAGE_TOOLS, "tool_choice": {"type": "none"}},
)
THOUGHTS: tuple[Body | None, ...] = (
    None,
    {"type": "adaptive", "display": "omitted"},
    {"type": "disabled"},
)
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def chats() -> Iterator[Body]:
    for n, stop, logprobs, tools in itertools.product((1, 3), STOPS, (None, 0, 2), TOOLS_ASKED):
        scored = {} if logprobs is None else {"logprobs": True, "top_logprobs": logprobs}
        yield {"messages": TURNS, "n": n, "stop": stop, "max_tokens": 99} | scored | tools


def messages() -> Iterator[Body]:
    for stop, tools, thinking in itertools.product(STOPS, MESSAGE_TOOLS_ASKED, THOUGHTS):
        asked = {"messages": TURNS, "stop_sequences": stop, "thinking": thinking} | tools
        yield {name: value for name, value in asked.items() if value} | {"max_tokens": 99}


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


async def answer(client: httpx.AsyncClient, path: str, body: Body) -> tuple[Any, Any]:
    """An answer with its usage, and what a stream of the same says."""
    stream = {"stream": True} if path == MESSAGES else WITH_USAGE
    whole = await client.post(path, json=body)
    streamed = await client.post(path, json=body | stream)
    assert whole.status_code == streamed.status_code == 200, whole.text + streamed.text
    if path == MESSAGES:
        return in_common(whole.json()), message(streamed.text)
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


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("source", [HERMES, THINKING], ids=["plain", "thinking"])
async def test_whatever_is_asked_and_written(
    tokenizer: Tokenizer, scripted: ScriptedService, path: str, source: str
) -> None:
    """Text, thoughts, calls, scores, ends and usage, over the whole product of the options."""
    draw = random.Random(5)
    bodies = list(chats() if path == CHAT else messages())
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
    forced: Sequence[tuple[str, Body]] = [
        (CHAT, {"messages": TURNS, "tools": TOOLS, "tool_choice": "required", "max_tokens": 60}),
        (
            MESSAGES,
            {"messages": TURNS, "tools": MESSAGE_TOOLS, "tool_choice": {"type": "any"}}
            | {"max_tokens": 60},
        ),
    ]
    some = random.Random(3).sample([(CHAT, body) for body in chats()], 8)
    some += [(TEXT, body) for body in texts()]
    async with open_client(model) as client:
        for path, body in (*some, *forced):
            # Anthropic's have no seed.
            asked = drawn if path != MESSAGES else {"model": "demo", "temperature": 0}
            short = body | {"max_tokens": min(body["max_tokens"], 60)}
            whole, streamed = await answer(client, path, asked | short)
            assert whole == streamed, body
