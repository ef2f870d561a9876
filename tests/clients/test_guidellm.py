"""guidellm's benchmark of a server, with its defaults: it asks `/health`, then streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.environments import ClientEnvironment
from tests.live_server import Server

MODEL = Path(__file__).parents[2] / "engine" / "demo" / "model"
RUN_S = 20
OUTPUT_TOKENS = 32


@pytest.fixture(scope="module")
def client(client_environment: Callable[[str], ClientEnvironment]) -> ClientEnvironment:
    return client_environment("guidellm")


def test_twenty_seconds_without_an_error(
    client: ClientEnvironment, server: Server, tmp_path: Path
) -> None:
    """Every request of a run succeeds, with the length that was asked for and its usage."""
    target = server.api.removesuffix("/v1")
    backend = {"kind": "openai_http", "target": target, "api_key": server.key}
    done = client.run(
        *("guidellm", "run", "--backend", json.dumps(backend)),
        *("--data", f"kind=synthetic_text,prompt_tokens=64,output_tokens={OUTPUT_TOKENS}"),
        *("--tokenizer", f"kind=huggingface_auto,model={MODEL}"),
        *("--profile", "kind=concurrent,streams=2", "--disable-progress"),
        *("--constraint", f"kind=max_duration,seconds={RUN_S}"),
        *("--output", f"kind=json,path={tmp_path / 'benchmarks.json'}"),
        cwd=tmp_path,
        timeout_s=240,
    )
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    (benchmark,) = json.loads((tmp_path / "benchmarks.json").read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert requests["errored"] == []
    assert len(requests["successful"]) > 5
    for one in requests["successful"]:
        assert one["output_tokens"] == OUTPUT_TOKENS
        assert one["time_to_first_token_ms"] > 0
