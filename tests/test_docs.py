"""The documents say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from engine.models.registry import markdown_table
from gateway.settings import Settings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_every_setting_is_in_the_readme() -> None:
    """The README's table has each setting, its description, and nothing else."""
    rows = re.findall(r"^\| `SLUICE_([A-Z_]+)` \|[^|]*\| (.+) \|$", README, re.MULTILINE)
    fields = Settings.model_fields
    expected = [(name.upper(), field.description) for name, field in fields.items()]
    assert rows == expected


def test_every_figure_in_the_readme_was_measured() -> None:
    """Each figure that the README quotes stands in a benchmark's JSON, rounded as quoted."""
    rows = re.findall(r"^\| `([a-z0-9_]+)` \| ([\d.,]+) (\S+) \|", README, re.MULTILINE)
    assert rows
    measured = {
        name: figure
        for path in (ROOT / "docs/benchmarks").glob("*.json")
        for name, figure in json.loads(path.read_text())["figures"].items()
    }
    for name, value, unit in rows:
        assert measured[name]["unit"] == unit
        digits = len(value.partition(".")[2])
        assert float(value.replace(",", "")) == round(measured[name]["value"], digits), name


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/benchmarks/*.json")), ids=lambda p: p.name)
def test_benchmark_report_has_the_one_shape(path: Path) -> None:
    """A report names machine, versions and commit, and states each figure with its goal."""
    report = json.loads(path.read_text())
    assert {"machine", "versions", "commit", "figures", "samples"} <= set(report)
    for figure in report["figures"].values():
        assert set(figure) == {"value", "unit", "goal", "met"}


def test_the_table_of_architectures_is_the_registrys() -> None:
    """What the README says is supported is what the registry supports."""
    assert markdown_table().strip() in README


def test_links_lead_somewhere() -> None:
    """Each relative link of the documents names a file that is there."""
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
