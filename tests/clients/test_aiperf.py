"""NVIDIA's aiperf: a small profile of streamed chats."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.environments import ClientEnvironment
from tests.live_server import Server

MODEL = Path(__file__).parents[2] / "engine" / "demo" / "model"
NUM_REQUESTS = 20


@pytest.fixture(scope="module")
def client(client_environment: Callable[[str], ClientEnvironment]) -> ClientEnvironment:
    return client_environment("aiperf")


def hub_with_tokenizer(directory: Path) -> Path:
    """Lay the demo model's tokenizer where the hub's cache has a model that was downloaded.

    aiperf's workers, which are offline, take a path for a name on the hub.
    """
    kept = directory / "hub" / "models--sluice--demo"
    commit = "0" * 40
    (kept / "snapshots" / commit).mkdir(parents=True)
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / file, kept / "snapshots" / commit)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(commit)
    return directory


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_a_profile_without_an_error(
    client: ClientEnvironment, server: Server, tmp_path: Path, kind: str
) -> None:
    """Each request of a profile is answered and measured to its first token."""
    done = client.run(
        *("aiperf", "profile", "--model", "sluice-demo", "--tokenizer", "sluice/demo"),
        *("--url", server.api.removesuffix("/v1"), "--api-key", server.key),
        *("--endpoint-type", kind, "--streaming", "--ui", "none"),
        *("--request-count", str(NUM_REQUESTS), "--concurrency", "2"),
        *("--synthetic-input-tokens-mean", "64", "--output-tokens-mean", "32"),
        # An answer that ends before its first word has none to be measured to.
        *("--extra-inputs", "ignore_eos:true"),
        *("--artifact-dir", tmp_path / "out"),
        cwd=tmp_path,
        timeout_s=240,
        HF_HOME=str(hub_with_tokenizer(tmp_path)),
    )
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    (report,) = (tmp_path / "out").rglob("profile_export_aiperf.json")
    profile = json.loads(report.read_text())
    assert profile["request_count"]["avg"] == NUM_REQUESTS
    assert not profile["error_summary"]
    assert profile["time_to_first_token"]["count"] == NUM_REQUESTS
    assert profile["output_sequence_length"]["avg"] > 1
