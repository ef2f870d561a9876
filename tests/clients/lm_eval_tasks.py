"""Two tasks of lm-eval about the demo model: one by log-likelihood, one by what is generated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

CHOICES: Final = (
    (
        "What is Sluice?",
        (
            "A multi-tenant LLM API gateway with its own engine",
            "A recipe of flour and cold water for nine",
        ),
    ),
    (
        "Do I need a GPU?",
        ("No: the engine runs on the CPU", "Yellow trains leave on Sunday nights"),
    ),
)
COMMON: Final = {
    "dataset_path": "json",
    "test_split": "test",
    "doc_to_text": "{{question}}",
}


def write_tasks(directory: Path) -> None:
    """Write the tasks `sluice_choice` and `sluice_answer`, and the questions that they read."""
    questions = directory / "questions.jsonl"
    rows = [{"question": q, "choices": list(c), "answer": 0} for q, c in CHOICES]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"dataset_kwargs": {"data_files": {"test": str(questions)}}}
    choice = {
        "task": "sluice_choice",
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc"}],
    }
    answer = {
        "task": "sluice_answer",
        "output_type": "generate_until",
        "doc_to_target": "{{choices[0]}}",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 64, "temperature": 0},
        "metric_list": [{"metric": "exact_match"}],
    }
    for task in (choice, answer):
        # YAML reads JSON.
        path = directory / f"{task['task']}.yaml"
        path.write_text(json.dumps(COMMON | data | task))
