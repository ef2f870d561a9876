"""EleutherAI's lm-eval: log-likelihoods over completions, generations over chats."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import ClientEnvironment
from tests.clients.lm_eval_tasks import write_tasks
from tests.live_server import Server

EVALUATE = Path(__file__).parents[2] / "examples" / "evaluate.py"
MODEL = Path(__file__).parents[2] / "engine" / "demo" / "model"


@pytest.fixture(scope="module")
def client(client_environment: Callable[[str], ClientEnvironment]) -> ClientEnvironment:
    return client_environment("lm-eval")


@pytest.fixture
def evaluated(client: ClientEnvironment, server: Server, tmp_path: Path) -> Callable[..., Any]:
    """Run a task and return its results and its samples."""
    write_tasks(tmp_path)

    def run(kind: str, route: str, task: str, *flags: str, **more: str) -> tuple[Any, list[Any]]:
        url = f"{server.api}/{route}"
        given = {"model": "sluice-demo", "base_url": url, "max_retries": "1", **more}
        done = client.run(
            *("lm_eval", "--model", kind, "--tasks", task, "--include_path", tmp_path),
            *("--model_args", ",".join(f"{name}={value}" for name, value in given.items())),
            *("--output_path", tmp_path / "out", "--log_samples", *flags),
            cwd=tmp_path,
            OPENAI_API_KEY=server.key,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        (results,) = (tmp_path / "out").rglob("results_*.json")
        (samples,) = (tmp_path / "out").rglob(f"samples_{task}_*.jsonl")
        scores = json.loads(results.read_text())["results"][task]
        return scores, [json.loads(line) for line in samples.read_text().splitlines()]

    return run


def likelihoods(sample: Any) -> list[float]:
    return [float(choice[0][0]) for choice in sample["resps"]]


def test_choices_by_log_likelihood(evaluated: Callable[..., Any]) -> None:
    """`local-completions` scores prompts that it tokenized itself; the true answers win."""
    scores, samples = evaluated(
        "local-completions",
        "completions",
        "sluice_choice",
        "--apply_chat_template",
        tokenizer_backend="huggingface",
        tokenizer=str(MODEL),
    )
    assert scores["acc,none"] == 1.0
    for sample in samples:
        true, false = likelihoods(sample)
        assert false < true < 0


def test_the_tokenizer_of_the_server(evaluated: Callable[..., Any], server: Server) -> None:
    """With `tokenizer_backend=remote` the server's `/tokenize` gives the same log-likelihoods."""
    _, samples = evaluated(
        "local-completions",
        "completions",
        "sluice_choice",
        tokenizer_backend="remote",
        auth_token=server.key,
    )
    assert len(samples) == 2
    for sample in samples:
        true, false = likelihoods(sample)
        assert false < true < 0


def test_chats_are_generated(evaluated: Callable[..., Any]) -> None:
    """`local-chat-completions` gets the demo model's answers, in chats of its own shape."""
    _, samples = evaluated(
        "local-chat-completions", "chat/completions", "sluice_answer", "--apply_chat_template"
    )
    first, second = (sample["resps"][0][0] for sample in samples)
    assert "gateway" in first
    assert "CPU" in second


def test_in_process_through_its_interface(client: ClientEnvironment) -> None:
    """The example's tasks get the accuracy in its harness that the example alone gives them."""
    [packages] = (client.directory / "lib").glob("python*/site-packages")
    # Behind our own packages: as if it were installed beside them.
    start = "import runpy, sys; sys.path.append(sys.argv.pop(1)); del sys.argv[0]; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", start, packages]
    plain, inside = (
        json.loads(subprocess.run(one, capture_output=True, text=True, check=True).stdout)
        for one in (
            [*command, EVALUATE, "--json"],
            [*command, EVALUATE, "--json", "--lm-eval"],
        )
    )
    assert inside.keys() == plain.keys()
    assert {name: found["acc"] for name, found in inside.items()} == {
        name: found["acc"] for name, found in plain.items()
    }
