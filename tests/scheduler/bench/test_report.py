"""Reports whose parts are measured one at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scheduler.bench.report import Figure, at_least, at_most, update_report


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_parts_stand_beside_each_other(tmp_path: Path) -> None:
    """A part that is measured again replaces its own figures and leaves the others'."""
    update_report(
        "r", "a", {"x": Figure(1, "s"), "old": Figure(9, "s")}, {"n": 1}, directory=tmp_path
    )
    update_report("r", "b", {"y": at_least(2, 3, "ratio")}, {"n": 2}, directory=tmp_path)
    path = update_report("r", "a", {"x": at_most(3, 3, "s")}, {"n": 3}, directory=tmp_path)
    document = read(path)
    assert document["figures"] == {
        "x": {"value": 3, "unit": "s", "goal": "<= 3", "met": True},
        "y": {"value": 2, "unit": "ratio", "goal": ">= 3", "met": False},
    }
    assert document["samples"] == {"a": {"n": 3}, "b": {"n": 2}}
    assert {part: entry["figures"] for part, entry in document["parts"].items()} == {
        "a": ["x"],
        "b": ["y"],
    }
    assert {"machine", "versions", "commit", "measured_at"} <= set(document)


def test_figures_of_another_machine_go(tmp_path: Path) -> None:
    """What was measured elsewhere is not mixed with what is measured here."""
    for gpu in ("one", "other"):
        path = update_report(
            "r", gpu, {gpu: Figure(1, "s")}, {}, directory=tmp_path, device={"gpu": gpu}
        )
    document = read(path)
    assert list(document["figures"]) == ["other"]
    assert document["machine"]["gpu"] == "other"
