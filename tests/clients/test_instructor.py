"""Instructor, which has a model fill Pydantic's models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.environments import ClientEnvironment


@pytest.fixture(scope="module")
def client(client_environment: Callable[[str], ClientEnvironment]) -> ClientEnvironment:
    return client_environment("instructor")


def test_models_are_filled(client: ClientEnvironment, answers: Callable[..., Any]) -> None:
    """By a tool that is named and by a schema, whole and as it streams, and behind a result."""
    seen = answers(client, "instructor_models.py")
    assert seen["called"] == "Place"
    for way in ("by_tools", "by_schema", "schema_partial", "again"):
        assert seen[way] in ("Rome", "Oslo"), way
    num_partial, last = seen["partial"]
    assert num_partial > 1
    assert last == seen["by_tools"]
    assert "gateway" in seen["plain"]
