"""OpenAI's own SDK for Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.environments import ClientEnvironment

CONTEXT = "context_length_exceeded"


@pytest.fixture(scope="module")
def client(client_environment: Callable[[str], ClientEnvironment]) -> ClientEnvironment:
    return client_environment("openai")


def test_the_sdk_reads_what_it_expects(
    client: ClientEnvironment, answers: Callable[..., Any]
) -> None:
    """Answers, streams, usage and logprobs arrive, and errors as the SDK's own exceptions."""
    seen = answers(client, "openai_sdk.py")
    assert seen["model"] == "sluice-demo"
    assert "gateway" in seen["whole"]
    assert seen["finish"] == "stop"
    assert seen["streamed"] == seen["whole"]
    assert seen["streamed_usage"]["completion_tokens"] == seen["usage"]["completion_tokens"] > 1
    assert seen["streamed_usage"]["prompt_tokens"] == seen["usage"]["prompt_tokens"] > 1
    assert seen["logprobs"] == [2, 2, 2]
    assert seen["text"].strip()
    assert seen["nobody"] == {
        "class": "AuthenticationError",
        "code": "invalid_api_key",
        "param": None,
    }
    assert seen["no_model"]["class"] == "NotFoundError"
    assert seen["no_model"]["code"] == "model_not_found"
    assert seen["too_long"] == {"class": "BadRequestError", "code": CONTEXT, "param": "messages"}
    assert seen["bad"]["class"] == "BadRequestError"
    assert seen["bad"]["param"] == "n"
