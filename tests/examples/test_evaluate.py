"""`examples/evaluate.py`: choices by log-likelihood, in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

EVALUATE = Path(__file__).parents[2] / "examples" / "evaluate.py"


def test_the_demo_model_knows_sluice_and_little_else() -> None:
    """Every question about Sluice is answered right, each choice scored; guesses fill the rest."""
    command = [sys.executable, EVALUATE, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["sluice"]["acc"] == 1.0
    assert 0 <= result["arithmetic"]["acc"] < 1
    assert [len(choices) for choices in result["arithmetic"]["logprobs"]] == [3] * 5
    assert all(score < 0 for task in result.values() for one in task["logprobs"] for score in one)


def test_an_unknown_task_is_wrong_usage() -> None:
    """A name that is no task is refused before a model is loaded."""
    command = [sys.executable, EVALUATE, "--tasks", "arithmetics"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "choose of arithmetic, sluice" in done.stderr
