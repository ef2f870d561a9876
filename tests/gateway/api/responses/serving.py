"""A client of a model with a template, and what its streams say, checked against OpenAI's types."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import httpx
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from engine.contract import Capability
from engine.simulated import SimulatedEngine
from engine.step_cost import load_profile
from engine.text import ChatTemplate, Tokenizer
from gateway.services.answers import answer_format
from scheduler.service import EngineService
from tests.gateway.api.conftest import MODEL, open_client, served_model
from tests.gateway.api.scripted_service import ScriptedService

PATH = "/v1/responses"
BODY: dict[str, Any] = {"model": MODEL, "input": "Hi"}
# What a response may have beside what OpenAI's has.
OURS = {"x_stop_cause", "store"}

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@asynccontextmanager
async def serving(
    tokenizer: Tokenizer, scripted: ScriptedService, source: str, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a model with this template, whose engine says what the test wrote."""
    info = SimulatedEngine(
        load_profile("cpu-demo"),
        vocab_size=tokenizer.vocab_size,
        max_model_len=2048,
        max_num_seqs=16,
        max_num_batched_tokens=128,
        num_blocks=256,
        block_size=16,
    ).info
    info = replace(info, capabilities=frozenset(Capability), eos_token_ids=frozenset([1]))
    plain = served_model(MODEL, cast(EngineService, scripted), info, tokenizer)
    template = ChatTemplate(source)
    model = replace(plain, chat_template=template, answer_format=answer_format(template))
    async with open_client(model, **options) as client:
        yield client


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each of a type of OpenAI's, numbered from 0 without a gap."""
    events = []
    for frame in text.split("\n\n"):
        if not frame or frame.startswith(":"):
            continue
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        checked = _EVENT.validate_json(data.removeprefix("data: "), strict=True)
        assert type(checked).__name__.startswith("Response")
        assert_no_more(checked)
        events.append(event)
    return events


def checked(response: httpx.Response) -> dict[str, Any]:
    """A whole response, of OpenAI's type."""
    assert response.status_code == 200, response.text
    assert_no_more(Response.model_validate_json(response.content, strict=True))
    return dict(response.json())


def assert_no_more(value: Any) -> None:
    """No object has fields that OpenAI's type does not know, but ours."""
    if isinstance(value, list):
        for one in value:
            assert_no_more(one)
    elif hasattr(value, "model_extra"):
        extra = set(value.model_extra or ()) - OURS
        # OpenAI's own deltas have them, its types do not.
        if type(value).__name__.startswith("Logprob"):
            extra.discard("bytes")
        assert not extra, (type(value).__name__, extra)
        for name in type(value).model_fields:
            assert_no_more(getattr(value, name))


def names(events: list[dict[str, Any]]) -> list[str]:
    """The names of events, those that repeat once."""
    found = [event["type"].removeprefix("response.") for event in events]
    return [name for index, name in enumerate(found) if not index or found[index - 1] != name]


def timeless(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs between two that are alike: ids, times."""
    text = json.dumps(response).replace(response["id"].removeprefix("resp_"), "ID")
    same: dict[str, Any] = json.loads(text)
    for name in ("created_at", "completed_at"):
        same.pop(name)
    for item in same["output"]:
        item.pop("call_id", None)
    return same
