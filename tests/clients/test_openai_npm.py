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
    """Answers, streams and usage arrive, and errors as the SDK's own exceptions."""
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
    assert seen["parsed"] in ("Rome", "Oslo")
    assert seen["streamed"] is True
    assert seen["second"].strip()
    assert seen["ran"]
