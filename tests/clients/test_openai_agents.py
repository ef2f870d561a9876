"""OpenAI's Agents SDK, over responses and over chat completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.environments import ClientEnvironment


@pytest.fixture(scope="module")
def client(client_environment: Callable[[str], ClientEnvironment]) -> ClientEnvironment:
    return client_environment("openai-agents")


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_its_loop_calls_and_ends(
    client: ClientEnvironment, answers: Callable[..., Any], api: str
) -> None:
    """It is answered, whole and streamed; calls what is forced, sends that back, and ends."""
    seen = answers(client, "openai_agents_run.py", SLUICE_API=api)
    assert "gateway" in seen["plain"]
    assert seen["streamed"] == seen["plain"]
    assert len(seen["called"]) == 2
    assert set(seen["called"]) <= {"Rome", "Oslo"}
    assert seen["told"].strip()
    assert seen["kinds"] == ["tool_call_item", "tool_call_output_item", "message_output_item"]
    assert seen["placed"] in ("Rome", "Oslo")
