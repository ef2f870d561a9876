"""`examples/rollouts.py`: samples with log-probabilities and seeds that draw them again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROLLOUTS = Path(__file__).parents[2] / "examples" / "rollouts.py"


def run(*flags: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROLLOUTS, *map(str, flags)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Write a chat and two texts that begin alike, longer than a block of the KV cache."""
    shared = "Sluice is a gateway. " * 40
    path = tmp_path / "prompts.jsonl"
    rows: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "What is Sluice?"}]},
        {"prompt": f"{shared} Redis holds"},
        {"prompt": f"{shared} PostgreSQL holds"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_each_sample_has_all_that_a_trainer_needs(prompts: Path, tmp_path: Path) -> None:
    """n samples a prompt in its order: ids in and out, a log-probability each, seeds, an end."""
    out = tmp_path / "rollouts.jsonl"
    done = run("--prompts", prompts, "-n", 3, "--max-tokens", 12, "--out", out, "--at-once", 2)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    given = [json.loads(line) for line in prompts.read_text().splitlines()]
    expected = [one.get("prompt") or one["messages"] for one in given for _ in range(3)]
    assert [row["prompt"] for row in rows] == expected
    assert [row["seed"] for row in rows] == list(range(9))
    for row in rows:
        assert len(row["logprobs"]) == len(row["token_ids"]) <= 12
        assert max(row["logprobs"]) <= 0
        assert row["finish_reason"] in ("stop", "length")
        assert row["prompt_token_ids"]
    # Texts that begin alike are computed once, and a text once for all of its samples.
    [share] = re.findall(r"tokens/s; (\d+)% of the prompts' tokens were shared", done.stderr)
    assert int(share) > 50


def test_a_seed_draws_its_sample_again(prompts: Path) -> None:
    """A row's seed gives the same tokens, sampled beside others or later; others differ."""
    done = run("--prompts", prompts, "-n", 4, "--dtype", "float32")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    texts = rows[4:8]
    assert len({tuple(row["token_ids"]) for row in texts}) > 1
    alone = prompts.with_name("alone.jsonl")
    alone.write_text(json.dumps({"prompt": texts[0]["prompt"]}) + "\n")
    done = run("--prompts", alone, "-n", 4, "--seed", 4, "--dtype", "float32")
    again = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["token_ids"] for row in again] == [row["token_ids"] for row in texts]


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    """A line without a prompt ends it before a model is loaded, with its number."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "x"}\n{"text": "y"}\n')
    done = run("--prompts", path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "line 2: no 'prompt' and no 'messages'" in done.stderr
    assert done.stderr.count("\n") == 1
