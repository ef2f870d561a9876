"""Pydantic AI's agents, over chat completions and responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.environments import ClientEnvironment


@pytest.fixture(scope="module")
def client(client_environment: Callable[[str], ClientEnvironment]) -> ClientEnvironment:
    return client_environment("pydantic-ai")


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_agents_answer(client: ClientEnvironment, answers: Callable[..., Any], api: str) -> None:
    """In words and as they stream, by a forced tool, by a schema, and behind a call's result."""
    seen = answers(client, "pydantic_ai_agents.py", SLUICE_API=api)
    assert "gateway" in seen["whole"]
    assert seen["streamed"] == seen["whole"]
    assert seen["output_tokens"] > 1
    for way in ("called", "streamed_call", "placed"):
        assert seen[way] in ("Rome", "Oslo"), way
    assert seen["told"].strip()
