"""LangChain's chat model for OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.environments import ClientEnvironment


@pytest.fixture(scope="module")
def client(client_environment: Callable[[str], ClientEnvironment]) -> ClientEnvironment:
    return client_environment("langchain-openai")


def test_chains_streams_and_history(client: ClientEnvironment, answers: Callable[..., Any]) -> None:
    """A chain, a stream and a second turn are answered, with usage; errors have their classes."""
    seen = answers(client, "langchain_openai_chat.py")
    assert "gateway" in seen["first"]
    assert seen["finish"] == "stop"
    assert seen["streamed"] == seen["first"]
    assert seen["num_chunks"] > 2
    counted = ("input_tokens", "output_tokens", "total_tokens")
    assert [seen["streamed_usage"][name] for name in counted] == [
        seen["usage"][name] for name in counted
    ]
    assert seen["second"].strip()
    # The history was sent: it was counted.
    assert seen["second_usage"]["input_tokens"] > seen["usage"]["total_tokens"]
    assert seen["chained"][0] == seen["first"]
    assert "CPU" in seen["chained"][1]
    assert seen["text"].strip()
    assert seen["too_long"] == "OpenAIContextOverflowError"
    assert seen["too_much"] == "OpenAIInvalidRequestError"
    assert seen["nobody"] == "OpenAIAuthenticationError"


def test_tools_and_schemas(client: ClientEnvironment, answers: Callable[..., Any]) -> None:
    """A bound tool is called, its result goes back, schemas are filled: chats and responses."""
    seen = answers(client, "langchain_tools.py")
    assert seen["name"] == "weather"
    assert seen["num_chunks"] > 2
    assert seen["result"] == f"Hot in {seen['city']}."
    assert seen["second"].strip()
    assert "gateway" in seen["made"]
    assert seen["made_streamed"] == seen["made"]
    assert seen["made_second"].strip()
    for way in ("city", "by_schema", "by_call", "made_city", "made_by_schema"):
        assert seen[way] in ("Rome", "Oslo"), way
    assert seen["streamed"]["city"] in ("Rome", "Oslo")
