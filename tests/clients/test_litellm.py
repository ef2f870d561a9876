"""LiteLLM as a library, to which Sluice is one more OpenAI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.environments import ClientEnvironment


@pytest.fixture(scope="module")
def client(client_environment: Callable[[str], ClientEnvironment]) -> ClientEnvironment:
    return client_environment("litellm")


def test_two_turns_and_its_errors(client: ClientEnvironment, answers: Callable[..., Any]) -> None:
    """Its history comes back as it gave it, and our errors become its own classes."""
    # Its table of prices comes with the package; otherwise it would be fetched.
    seen = answers(client, "litellm_completion.py", LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert "gateway" in seen["first"]
    assert seen["streamed"] == seen["made"] == seen["made_streamed"] == seen["first"]
    counted = ("prompt_tokens", "completion_tokens")
    assert [seen["streamed_usage"][name] for name in counted] == [
        seen["usage"][name] for name in counted
    ]
    assert "provider_specific_fields" in seen["sent_back"]
    assert seen["second"].strip()
    assert seen["second_usage"]["prompt_tokens"] > seen["usage"]["total_tokens"]
    assert seen["too_long"] == "ContextWindowExceededError"
    assert seen["long_prompt"] == "ContextWindowExceededError"
    assert seen["no_model"] == "NotFoundError"
    assert seen["nobody"] == "AuthenticationError"
    assert seen["bad"] == "BadRequestError"


def test_tools_and_schemas(client: ClientEnvironment, answers: Callable[..., Any]) -> None:
    """Calls by both of its ways here, whole and streamed; results go back; a model is filled."""
    seen = answers(client, "litellm_tools.py", LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert (seen["name"], seen["finish"]) == ("weather", "tool_calls")
    assert seen["streamed"] == [True, "tool_calls"]
    assert seen["second"].strip()
    assert seen["by_messages"] == ["weather", "tool_calls"]
    for city in (seen["city"], seen["placed"]):
        assert city in ("Rome", "Oslo")
