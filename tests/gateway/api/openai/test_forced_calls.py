"""Calls that are forced, on the real engine: a weak model makes good ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from engine.text import ChatTemplate
from gateway.services.answers import answer_format
from gateway.services.inference.models import ServedModel
from tests.gateway.api.conftest import open_client

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
TALK = "{{ bos_token }}{{ tools }}{% for m in messages %}<|user|>{{ m.content }}{% endfor %}"
HERMES = TALK + "<|assistant|>{# <tool_call> #}"
SOURCES = {
    "hermes": HERMES,
    "llama3": TALK + "<|assistant|>{# <|python_tag|> #}",
    "mistral": TALK + "<|assistant|>{# [TOOL_CALLS] #}",
}
CITY = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo"]},
        "days": {"type": "integer", "maximum": 9, "minimum": 0},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {
        "type": "function",
        "function": {"name": "time", "parameters": {"additionalProperties": False}},
    },
]
BODY: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Weather?"}],
    "tools": TOOLS,
    "max_tokens": 500,
    "temperature": 0.8,
    "seed": 3,
}
NAMED = {"type": "function", "function": {"name": "weather"}}


async def ask(demo: ServedModel, source: str, **asked: Any) -> list[dict[str, Any]]:
    template = ChatTemplate(source, variables={"bos_token": "<|bos|>"})
    model = replace(demo, chat_template=template, answer_format=answer_format(template))
    async with open_client(model) as client:
        response = await client.post(PATH, json=BODY | asked)
    assert response.status_code == 200, response.text
    choices: list[dict[str, Any]] = response.json()["choices"]
    return choices


@pytest.mark.parametrize("family", sorted(SOURCES))
async def test_a_named_call_is_of_its_schema(demo: ServedModel, family: str) -> None:
    """One call of that name, its arguments good; it ends with `stop`."""
    for choice in await ask(demo, SOURCES[family], tool_choice=NAMED, n=2):
        [call] = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "weather"
        jsonschema.validate(json.loads(call["function"]["arguments"]), CITY)
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["content"] is None


@pytest.mark.parametrize("family", ["hermes", "llama3", "mistral"])
async def test_required_makes_a_call(demo: ServedModel, family: str) -> None:
    """One call at least, each of a tool there is; without parallel ones, one alone."""
    asked = {"tool_choice": "required", "parallel_tool_calls": False}
    for choice in await ask(demo, SOURCES[family], n=2, **asked):
        [call] = choice["message"]["tool_calls"]
        assert call["function"]["name"] in ("weather", "time")
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
        assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stop", ["\n", "<tool_call>", "{", "name", "weather"])
async def test_no_stop_string_cuts_the_words_that_open_a_forced_call(
    demo: ServedModel, stop: str
) -> None:
    """They are ours: a client never sees them, and would have had no call, or half of one."""
    for family in sorted(SOURCES):
        [choice] = await ask(demo, SOURCES[family], tool_choice=NAMED, stop=[stop])
        [call] = choice["message"]["tool_calls"]
        jsonschema.validate(json.loads(call["function"]["arguments"]), CITY)
        assert choice["message"]["content"] is None


async def test_a_form_or_a_call(demo: ServedModel) -> None:
    """Where both are asked for, an answer is of the form, or calls."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}
    for choice in await ask(demo, HERMES, response_format=form, n=3):
        message = choice["message"]
        if message["content"] is not None:
            jsonschema.validate(json.loads(message["content"]), CITY)
        else:
            assert message["tool_calls"]
