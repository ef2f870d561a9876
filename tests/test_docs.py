"""The documents say what the code does, and name what is there."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from prometheus_client import Counter

from engine.models.registry import markdown_table
from gateway.settings import Settings
from gateway.telemetry.families import FAMILIES
from gateway.telemetry.metrics import Metrics

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FLOORS = ("engine", "scheduler", "gateway")
IGNORED = [".*", *(line.strip("/") for line in (ROOT / ".gitignore").read_text().split())]


def test_every_setting_is_in_the_readme() -> None:
    """The README's table has each setting, its description, and nothing else."""
    rows = re.findall(r"^\| `SLUICE_([A-Z_]+)` \|[^|]*\| (.+) \|$", README, re.MULTILINE)
    fields = Settings.model_fields
    expected = [(name.upper(), field.description) for name, field in fields.items()]
    assert sorted(rows) == sorted(expected)


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
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def section(document: str, title: str) -> str:
    """Return what stands between a heading of the second level and the next."""
    found = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", document, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def rooms(folder: Path) -> set[str]:
    """Name the folders in `folder` that git would keep; what imports left behind is none."""
    names = {
        path.name
        for path in folder.iterdir()
        if any(file.is_file() and file.suffix != ".pyc" for file in path.rglob("*"))
    }
    return {name for name in names if not any(fnmatch(name, ignored) for ignored in IGNORED)}


def mapped(tree: str) -> Iterator[tuple[Path, bool]]:
    """Yield the paths that a map names, and whether before its line's text or in it.

    A line is names, at least two spaces, a text. It is about a folder at the root, or indented
    and about what is in that folder.
    """
    floor = Path()
    for line in tree.splitlines():
        names, _, text = line.strip().partition("  ")
        if line and not line.startswith(" "):
            floor = Path(names)
            yield floor, True
        else:
            yield from ((floor / name, True) for name in names.split())
        for word in re.findall(r"[\w./]+", text):
            if word.endswith(("/", ".py", ".md")):
                yield floor / word, False


def test_the_tree_in_the_readme_is_there() -> None:
    """Each folder and module that the README's tree names exists, and each room is named."""
    [tree] = re.findall(r"```text\n(.*?)```", section(README, "The tree"), re.DOTALL)
    named = list(mapped(tree))
    assert [path for path, _ in named if not (ROOT / path).exists()] == []
    there = {Path(name) for name in rooms(ROOT)}
    there |= {Path(floor) / name for floor in FLOORS for name in rooms(ROOT / floor)}
    assert there - {path for path, is_entry in named if is_entry} == set()


def dotted_names() -> Iterator[str]:
    """Yield `room.module`, `module.function`, `module.Class` and `Class.member` of the product."""
    for path in (path for floor in FLOORS for path in (ROOT / floor).rglob("*.py")):
        yield f"{path.parent.name}.{path.stem}"
        tree = ast.parse(path.read_bytes())
        yield from (f"{path.stem}.{name}" for name in defined(tree))
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                yield from (f"{node.name}.{name}" for name in defined(node))


def defined(node: ast.Module | ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        if isinstance(item, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield item.name
        elif isinstance(item, ast.AnnAssign):
            yield ast.unparse(item.target)


def quoted(text: str) -> list[str]:
    """Return the words in backticks, without those of blocks of code."""
    return re.findall(r"`([^`\s]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def test_the_path_of_a_request_is_walked() -> None:
    """Each module and each dotted name that the README's path of a request names exists."""
    words = quoted(section(README, "The path of a request"))
    paths = [word for word in words if "/" in word and not word.startswith("/")]
    dotted = {word.removesuffix("()") for word in words if "/" not in word and "." in word}
    assert paths
    assert dotted
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert {".".join(name.split(".")[-2:]) for name in dotted} - {*dotted_names()} == set()


def test_what_contributing_names_is_there() -> None:
    """Each path in CONTRIBUTING.md exists; a star stands for any name."""
    words = quoted((ROOT / "CONTRIBUTING.md").read_text())
    paths = [word for word in words if re.fullmatch(r"[\w*.-]+(/[\w*.-]*)+|\w+\.(md|toml)", word)]
    assert paths
    assert [path for path in paths if not any(ROOT.glob(path))] == []


def test_every_metric_is_in_the_docs() -> None:
    """The table of docs/operations.md has each metric with its type and labels, and no other."""
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| (.*?) \|",
        section((ROOT / "docs/operations.md").read_text(), "Metrics"),
        re.MULTILINE,
    )
    assert {(name, kind, tuple(re.findall(r"\w+", labels))) for name, kind, labels in rows} == {
        (
            metric._name + ("_total" if isinstance(metric, Counter) else ""),
            metric._type,
            metric._labelnames,
        )
        for name, metric in vars(Metrics()).items()
        if name != "registry"
    } | {(one.name, one.kind, one.labels) for one in FAMILIES}


def test_every_alert_has_its_line() -> None:
    """The table of alerts has a row for each rule, and each rule a metric that is there."""
    rules = yaml.safe_load((ROOT / "helm/sluice/rules/sluice.yaml").read_text())
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    text = section((ROOT / "docs/operations.md").read_text(), "Alerts")
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == alerts


def test_no_document_names_a_metric_that_is_not_there() -> None:
    """A `sluice_…` in backticks is a metric that is exposed, or one of a few other things."""
    # PostgreSQL's roles, and how a key begins.
    roles = {f"sluice_{role}" for role in ("app", "platform", "owner", "server")}
    rules = yaml.safe_load((ROOT / "helm/sluice/rules/autoscaling.yaml").read_text())
    recorded = {rule["record"] for group in rules["groups"] for rule in group["rules"]}
    others = {*roles, *recorded, "sluice_live_"}
    text = Metrics().render()[0].decode()
    exposed = set(re.findall(r"^(?:# TYPE )?(sluice_\w+)", text, re.M))
    exposed |= {family.name for family in FAMILIES}
    for document in DOCUMENTS:
        words = re.findall(r"`(sluice_[a-z_]+)(?:\{[^}]*\})?`", document.read_text())
        assert set(words) - exposed - others == set(), document.name


def walls() -> Iterator[list[str]]:
    """Yield the rows of the table of walls, a list of cells each."""
    text = (ROOT / "docs/isolation.md").read_text()
    table = text.partition("|---|---|---|---|---|\n")[2].partition("\n\n")[0]
    for line in table.splitlines():
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_every_wall_is_kept_and_attacked_by_what_is_there() -> None:
    """Each row names a file or room that exists, a command that runs, and figures in their JSON."""
    from scheduler.simulator.suites import suites
    from tests.soak.__main__ import GROUPS, PARTS

    rows = list(walls())
    assert len(rows) > 20
    for shared, wall, kept, attack, figure in rows:
        assert wall or not shared, kept
        [place] = re.findall(r"`([\w/.]+)`", kept)
        assert (ROOT / place).exists(), place
        command = attack.partition("`")[2].partition("`")[0]
        if found := re.fullmatch(r'make soak ARGS="--part (\w+)"', command):
            assert found[1] in {*GROUPS, *PARTS}, command
        elif found := re.fullmatch(r"sluice simulate --suite (\w+)", command):
            assert found[1] in suites(), command
        elif found := re.fullmatch(r"make test ARGS=([\w/.]+)", command):
            assert (ROOT / found[1]).exists(), command
        else:
            assert command == "sluice bench gateway", command
        names, _, report = figure.rpartition(" in ")
        if figure != "–":
            figures = json.loads((ROOT / f"docs/benchmarks/{report}.json").read_text())["figures"]
            assert set(re.findall(r"`(\w+)`", names)) <= set(figures), figure
