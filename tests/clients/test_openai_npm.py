"""OpenAI's own SDK for JavaScript."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.environments import ClientEnvironment


@pytest.fixture(scope="module")
def client(npm_client: Callable[[str], ClientEnvironment]) -> ClientEnvironment:
    return npm_client("openai")


def test_the_sdk_reads_what_it_expects(
    client: ClientEnvironment, answers: Callable[..., Any]
) -> None:
    """Answers, streams and usage arrive, over chats and responses, and errors as its exceptions."""
    seen = answers(
        client,
        "openai_sdk.mjs",
        interpreter="node",
        CLIENT_DIRECTORY=str(client.directory),
    )
    assert seen["model"] == "sluice-demo"
    assert "gateway" in seen["whole"]
    assert seen["streamed"] == seen["gathered"] == seen["whole"]
    assert seen["streamed_usage"] == seen["usage"]
    assert seen["usage"]["completion_tokens"] > 1
    for way in ("made", "made_streamed", "made_gathered", "made_kept"):
        assert seen[way] == seen["whole"], way
    assert seen["made_ends"] == ["response.created", "response.completed"]
    goes_on, num_tokens = seen["made_then"]
    assert goes_on
    assert num_tokens > seen["made_usage"]["input_tokens"] == seen["usage"]["prompt_tokens"]
    assert seen["made_gone"]["code"] == "response_not_found"
    assert seen["nobody"]["class"] == "AuthenticationError"
    assert seen["nobody"]["code"] == "invalid_api_key"
    assert seen["no_model"]["class"] == "NotFoundError"
    assert seen["too_long"]["class"] == "BadRequestError"
    assert seen["too_long"]["code"] == "context_length_exceeded"


def test_tools_and_schemas(client: ClientEnvironment, answers: Callable[..., Any]) -> None:
    """Calls are read, whole, streamed and by its own loop; results and schemas are taken."""
    seen = answers(
        client,
        "openai_tools.mjs",
        interpreter="node",
        CLIENT_DIRECTORY=str(client.directory),
    )
    assert (seen["name"], seen["finish"]) == ("weather", "tool_calls")
    assert seen["city"] in ("Rome", "Oslo")
    for way in ("parsed", "made_city", "made_parsed"):
        assert seen[way] in ("Rome", "Oslo"), way
    assert seen["streamed"] is True
    assert seen["second"].strip()
    assert seen["ran"]
