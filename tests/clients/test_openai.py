"""OpenAI's own SDK for Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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
    assert seen["made"] == seen["made_streamed"] == seen["made_kept"] == seen["whole"]
    assert seen["made_events"] == ["response.created", "response.completed"]
    goes_on, num_tokens = seen["made_then"]
    assert goes_on
    assert num_tokens > seen["made_usage"]["input_tokens"] == seen["usage"]["prompt_tokens"]
    assert seen["made_gone"]["code"] == "response_not_found"
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


def test_tools_and_schemas(client: ClientEnvironment, answers: Callable[..., Any]) -> None:
    """Calls, streamed calls, results and models are what the SDK's types say, and no more."""
    seen = answers(client, "openai_tools.py")
    assert seen["name"] == "weather"
    for way in ("city", "gathered", "parsed", "parsed_call", "made_call", "made_parsed"):
        assert seen[way] in ("Rome", "Oslo"), way
    assert (seen["finish"], seen["content"]) == ("tool_calls", None)
    assert seen["by_name"] == ["weather", "stop"]
    assert seen["streamed"] == [True, "tool_calls"]
    assert seen["second"].strip()
    assert seen["without"].strip()
    assert seen["made_told"].strip()
    assert seen["any_object"] in ("stop", "length")


def test_answers_are_of_its_types_and_ours(
    client: ClientEnvironment, answers: Callable[..., Any]
) -> None:
    """Every document and event is strictly of its type; docs/api.md names the fields beside."""
    seen = answers(client, "openai_types.py")
    for name, least in (
        ("chat", 8),
        ("chunk", 50),
        ("text", 10),
        ("event", 40),
        ("batch", 2),
        ("files", 1),
    ):
        assert seen["held"][name] >= least, name
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    _, _, beside = page.partition("## Fields of answers beside OpenAI's")
    assert beside
    for name, extra in seen["extra"].items():
        for field in extra:
            assert f"`{field}`" in beside, (name, field)
