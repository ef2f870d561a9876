"""The model's own sampling defaults: used where a request does not say, and told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import httpx
import pytest

from engine.contract import SamplingParams
from engine.cpu.runner import TorchEngine
from engine.generation_config import SamplingDefaults
from engine.text import Tokenizer
from scheduler.service import EngineService
from tests.gateway.api.conftest import open_client, served_model
from tests.gateway.api.scripted_service import ScriptedService

pytestmark = pytest.mark.anyio

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
DEFAULTS = SamplingDefaults(
    temperature=0.6, top_p=0.95, top_k=20, min_p=0.05, repetition_penalty=1.1, max_tokens=40
)


@pytest.fixture
async def defaulted(
    scripted: ScriptedService, torch_engine: TorchEngine, tokenizer: Tokenizer
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a model with defaults of its own, which computes nothing."""
    service = cast(EngineService, scripted)
    model = served_model("demo", service, torch_engine.info, tokenizer)
    async with open_client(replace(model, sampling_defaults=DEFAULTS)) as client:
        yield client


async def asked(
    client: httpx.AsyncClient, scripted: ScriptedService, path: str, **fields: Any
) -> SamplingParams:
    """Return what the scheduler is asked to draw."""
    what = {"messages": [{"role": "user", "content": "Hi"}]} if path == CHAT else {"prompt": "Hi"}
    answer = await client.post(path, json={"model": "demo"} | what | fields)
    assert answer.status_code == 200, answer.text
    return scripted.requests[-1].params


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_what_a_request_does_not_say_is_the_models(
    defaulted: httpx.AsyncClient, scripted: ScriptedService, path: str
) -> None:
    """On chats and on completions; null says nothing either."""
    for fields in ({}, {"temperature": None, "top_k": None}):
        params = await asked(defaulted, scripted, path, **fields)
        assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.95, 20)
        assert (params.min_p, params.repetition_penalty) == (0.05, 1.1)


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_what_a_request_says_wins(
    defaulted: httpx.AsyncClient, scripted: ScriptedService, path: str
) -> None:
    """Each by itself, also where it says that something is off."""
    off = {"temperature": 1, "top_p": 1, "min_p": 0, "repetition_penalty": 1, "max_tokens": 5}
    for top_k in (-1, 0):
        params = await asked(defaulted, scripted, path, top_k=top_k, **off)
        assert replace(params, seed=0) == SamplingParams(max_tokens=5)
    params = await asked(defaulted, scripted, path, temperature=0)
    assert params.greedy
    assert params.top_k == 20


async def test_a_default_length_is_of_chats_alone(
    defaulted: httpx.AsyncClient, scripted: ScriptedService
) -> None:
    """Completions have OpenAI's 16; a chat that asks for more tokens at least has them."""
    assert (await asked(defaulted, scripted, CHAT)).max_tokens == 40
    assert (await asked(defaulted, scripted, CHAT, max_completion_tokens=60)).max_tokens == 60
    assert (await asked(defaulted, scripted, CHAT, min_tokens=50)).max_tokens > 50
    assert (await asked(defaulted, scripted, TEXT)).max_tokens == 16


async def test_the_model_says_its_defaults(defaulted: httpx.AsyncClient) -> None:
    """Both routes of models tell all of them, so that nobody has to know the rest."""
    told = {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "max_tokens": 40,
    }
    assert (await defaulted.get("/v1/models/demo")).json()["sampling_defaults"] == told
    assert (await defaulted.get("/v1/models")).json()["data"][0]["sampling_defaults"] == told
