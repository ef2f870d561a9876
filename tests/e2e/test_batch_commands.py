"""`sluice batch` and the evaluation through a batch, beside a server that works them off."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live_server import SLUICE, Server, sluice_env

ROOT = Path(__file__).parents[2]
QUESTIONS = {"what": "What is Sluice?", "gpu": "Do I need a GPU?"}


def test_from_questions_to_answers_in_one_line(server: Server, tmp_path: Path) -> None:
    """What is submitted and waited for can be piped into its download; each line is answered."""
    lines = [
        {
            **{"custom_id": name, "method": "POST", "url": "/v1/chat/completions"},
            "body": {
                "model": "sluice-demo",
                "messages": [{"role": "user", "content": question}],
                "temperature": 0,
            },
        }
        for name, question in QUESTIONS.items()
    ]
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = subprocess.run(
        f"{SLUICE} batch submit {file} --wait | xargs {SLUICE} batch download",
        shell=True,
        cwd=tmp_path,
        env=sluice_env(SLUICE_BASE_URL=server.api, SLUICE_API_KEY=server.key),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "completed 2/2" in done.stderr
    # At half the price by default: what is saved is what it costs.
    assert re.search(r"\$([0-9.]+), \$\1 saved", done.stderr), done.stderr
    rows = map(json.loads, (tmp_path / done.stdout.strip()).read_text().splitlines())
    answers = {row["custom_id"]: row["response"]["body"]["choices"][0] for row in rows}
    assert answers.keys() == QUESTIONS.keys()
    assert "gateway" in answers["what"]["message"]["content"]


def test_an_evaluation_through_a_batch(server: Server) -> None:
    """The example gives the scores of its own process, but for what bfloat16 rounds."""
    command = [sys.executable, ROOT / "examples/evaluate.py", "--json"]
    env = sluice_env(SLUICE_BASE_URL=server.api, SLUICE_API_KEY=server.key)
    through, inside = (
        json.loads(subprocess.run(one, env=env, capture_output=True, check=True).stdout)
        for one in ([*command, "--batch", "--poll-s", "0.2"], command)
    )
    for name, found in inside.items():
        assert through[name]["acc"] == found["acc"]
        for mine, theirs in zip(through[name]["logprobs"], found["logprobs"], strict=True):
            assert mine == pytest.approx(theirs, rel=0.02)
