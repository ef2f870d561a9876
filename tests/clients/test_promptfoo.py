"""promptfoo's evaluations, with its defaults: it asks for 1,024 new tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import ClientEnvironment
from tests.live_server import Server

ALONE = {
    "PROMPTFOO_DISABLE_TELEMETRY": "1",
    "PROMPTFOO_DISABLE_UPDATE": "1",
    "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
}


@pytest.fixture(scope="module")
def client(npm_client: Callable[[str], ClientEnvironment]) -> ClientEnvironment:
    return npm_client("promptfoo")


def evaluate(client: ClientEnvironment, server: Server, directory: Path, model: str) -> Any:
    provider = {
        "id": f"openai:chat:{model}",
        "config": {"apiBaseUrl": server.api, "apiKey": server.key},
    }
    config = {
        "prompts": ["{{question}}"],
        "providers": [provider],
        "tests": [
            {
                "vars": {"question": "What is Sluice?"},
                "assert": [{"type": "contains", "value": "gateway"}],
            },
            {
                "vars": {"question": "Do I need a GPU?"},
                "assert": [{"type": "contains", "value": "CPU"}],
            },
        ],
    }
    asked, told = directory / "promptfooconfig.json", directory / "results.json"
    asked.write_text(json.dumps(config))
    flags = ("--no-cache", "--no-progress-bar", "--no-table")
    done = client.run(
        *("promptfoo", "eval", "--config", asked, "--output", told, *flags), cwd=directory, **ALONE
    )
    assert told.exists(), done.stderr[-4000:] + done.stdout[-4000:]
    return json.loads(told.read_text())["results"]


def test_an_evaluation_passes(client: ClientEnvironment, server: Server, tmp_path: Path) -> None:
    """Both questions are answered as they should be, and what they used is counted."""
    results = evaluate(client, server, tmp_path, "sluice-demo")
    assert [one.get("error") for one in results["results"]] == [None, None]
    assert results["stats"]["successes"] == 2
    usage = results["stats"]["tokenUsage"]
    assert usage["prompt"] > 1
    assert usage["completion"] > 1


def test_an_error_is_shown(client: ClientEnvironment, server: Server, tmp_path: Path) -> None:
    """A model that is not there is an error of the evaluation, with our words."""
    results = evaluate(client, server, tmp_path, "gpt-none")
    for one in results["results"]:
        assert not one["success"]
        assert "The model 'gpt-none' does not exist." in one["error"]
