"""LlamaIndex's model for servers that speak OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.environments import ClientEnvironment


@pytest.fixture(scope="module")
def client(client_environment: Callable[[str], ClientEnvironment]) -> ClientEnvironment:
    return client_environment("llama-index")


def test_chats_texts_and_history(client: ClientEnvironment, answers: Callable[..., Any]) -> None:
    """A chat, its stream, a second turn and a text are answered; errors have their classes."""
    seen = answers(client, "llama_index_llm.py")
    assert "gateway" in seen["first"]
    assert seen["streamed"] == seen["completed"] == seen["first"]
    assert seen["made"] == seen["made_streamed"] == seen["first"]
    assert seen["num_pieces"] > 2
    assert seen["second"].strip()
    assert seen["second_usage"]["prompt_tokens"] > seen["usage"]["total_tokens"]
    assert seen["text"].strip()
    assert seen["text_streamed"] == seen["text"]
    assert seen["too_long"] == "BadRequestError"
    assert seen["nobody"] == "AuthenticationError"


def test_tools_and_schemas(client: ClientEnvironment, answers: Callable[..., Any]) -> None:
    """A tool is called, whole and streamed; its result goes back; a model is filled."""
    seen = answers(client, "llama_index_tools.py")
    assert seen["name"] == "weather"
    assert seen["result"] == f"Hot in {seen['city']}."
    assert seen["second"].strip()
    for city in (seen["city"], seen["streamed"]["city"], seen["placed"]):
        assert city in ("Rome", "Oslo")
