"""Reports whose parts are measured one at a time."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scheduler.bench import report
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


@pytest.mark.parametrize("model", ["cpu", "gpu"])
def test_figures_of_another_machine_go(tmp_path: Path, model: str) -> None:
    """What was measured on another processor or GPU is not mixed with what is measured here."""
    for name in ("one", "other"):
        path = update_report(
            "r", name, {name: Figure(1, "s")}, {}, directory=tmp_path, device={model: name}
        )
    document = read(path)
    assert list(document["figures"]) == ["other"]
    assert document["machine"][model] == "other"


def test_figures_of_the_same_machine_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other memory, cores, systems and versions take no figure; each part says what it ran on."""
    update_report("r", "a", {"x": Figure(1, "s")}, {}, directory=tmp_path)
    before = read(tmp_path / "r.json")
    changed = {"memory_gib": 0.5, "cores": 1000, "system": "another", "python": "4.0"}
    monkeypatch.setattr(report, "machine", lambda: before["machine"] | changed)
    monkeypatch.setattr(report, "_versions", lambda: {"torch": "99"})
    document = read(update_report("r", "b", {"y": Figure(2, "s")}, {}, directory=tmp_path))
    assert set(document["figures"]) == {"x", "y"}
    assert document["parts"]["a"] == before["parts"]["a"]
    assert document["parts"]["a"]["versions"] == before["versions"] != {"torch": "99"}
    assert document["parts"]["b"]["versions"] == {"torch": "99"}
    assert document["parts"]["b"]["machine"]["cores"] == 1000


def test_part_that_said_nothing_of_its_machine(tmp_path: Path) -> None:
    """A part from before parts did is taken to have run on what its whole report names."""
    path = update_report("r", "a", {"x": Figure(1, "s")}, {}, directory=tmp_path)
    document = read(path)
    whole = document["parts"]["a"]
    document["parts"]["a"] = {key: whole[key] for key in ("measured_at", "commit", "figures")}
    path.write_text(json.dumps(document))
    document = read(update_report("r", "b", {}, {}, directory=tmp_path))
    del whole["complete"]
    assert document["parts"]["a"] == whole


def test_half_a_part_says_so(tmp_path: Path) -> None:
    """A part that still grows is marked, and its end takes the mark away."""
    for complete in (False, True):
        figures = {"x": Figure(1, "s")}
        path = update_report("r", "a", figures, {}, directory=tmp_path, complete=complete)
        assert read(path)["parts"]["a"]["complete"] is complete


def test_broken_write_leaves_the_report(tmp_path: Path) -> None:
    """A report that cannot be written to its end stays what it was."""
    path = update_report("r", "a", {"x": Figure(1, "s")}, {}, directory=tmp_path)
    before = path.read_text()
    with pytest.raises(TypeError):
        update_report("r", "b", {}, {"no JSON": object()}, directory=tmp_path)
    path.with_suffix(".tmp").write_text("{ half a")
    assert path.read_text() == before
    update_report("r", "b", {"y": Figure(1, "s")}, {}, directory=tmp_path)
    assert set(read(path)["figures"]) == {"x", "y"}
    assert [file.name for file in tmp_path.iterdir()] == ["r.json"]


def test_parts_measured_side_by_side_are_all_there(tmp_path: Path) -> None:
    """Writers of one report wait for each other: none writes over what another has read."""

    def write(number: int) -> None:
        for round_number in range(5):
            figures = {f"x{number}": Figure(round_number, "s")}
            update_report("r", f"part {number}", figures, {}, directory=tmp_path)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    document = read(tmp_path / "r.json")
    assert document["figures"] == {
        f"x{number}": {"value": 4, "unit": "s", "goal": None, "met": None} for number in range(8)
    }
    assert len(document["parts"]) == 8
