"""Anthropic's own SDK for Python, pointed here by its base URL alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.environments import ClientEnvironment


@pytest.fixture(scope="module")
def client(client_environment: Callable[[str], ClientEnvironment]) -> ClientEnvironment:
    return client_environment("anthropic")


def test_the_sdk_reads_what_it_expects(
    client: ClientEnvironment, answers: Callable[..., Any]
) -> None:
    """Messages, streams, counts, errors and batches are what the SDK's types say, and no more."""
    seen = answers(client, "anthropic_sdk.py")
    assert "gateway" in seen["whole"]
    assert (seen["stop"], seen["final_stop"]) == ("end_turn", "end_turn")
    assert seen["streamed"] == seen["final"] == seen["whole"]
    assert seen["final_tokens"] == seen["output_tokens"] > 1
    assert seen["events"] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert seen["counted"] == seen["billed"] > 1
    for fact in ("request_id", "stop_sequence", "gone_on", "older", "cancelled", "listed"):
        assert seen[fact] is True, fact
    for name, kind, status, type_, named in (
        ("nobody", "AuthenticationError", 401, "authentication_error", "key"),
        ("no_model", "NotFoundError", 404, "not_found_error", "gpt-9"),
        ("no_batch", "NotFoundError", 404, "not_found_error", "batch"),
        ("bad", "BadRequestError", 400, "invalid_request_error", "top_k"),
    ):
        error = seen[name]
        assert named in error.pop("message")
        assert error == {"class": kind, "status": status, "type": type_, "has_id": True}
    assert seen["made"] == "in_progress"
    assert seen["results"] == [["r0", "succeeded"], ["r1", "errored"], ["r2", "succeeded"]]
    assert seen["deleted"] == "message_batch_deleted"


def test_tools_and_schemas(client: ClientEnvironment, answers: Callable[..., Any]) -> None:
    """Calls, their inputs as they stream, results, thoughts and schemas are what its types say."""
    seen = answers(client, "anthropic_tools.py")
    assert seen["call"] == ["tool_use", "weather", True]
    assert seen["stop"] == "tool_use"
    assert seen["events"] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert seen["streamed"] == [True, "tool_use"]
    assert seen["any"] == [1, "tool_use"]
    assert seen["second"] == "text"
    assert seen["counted"] is True
    assert seen["parsed"] in ("Rome", "Oslo")
    # The demo model does not think, and says so.
    assert seen["thinking"] == ["thinking", "message"]
    status, message = seen["server_tool"]
    assert status == 400
    assert "web_search_20250305" in message
    assert seen["cut"] == ["max_tokens", "tool_use"]
    assert seen["beta"] == ["weather", "tool_use"]
    assert seen["item"] == ["succeeded", "tool_use"]
