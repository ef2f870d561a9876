"""The table of classes of faults names tests that are there, and leaves none of its own out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs/security.md").read_text()
NODE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def functions_of(file: Path) -> set[str]:
    nodes = ast.walk(ast.parse(file.read_text()))
    return {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def test_every_class_has_a_rule_and_a_test_that_exists() -> None:
    """Each row has four fields, and each test that it names is a function of that file."""
    rows = [line for line in TABLE.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 20
    for row in rows:
        name, seen, rule, held = (field.strip() for field in row.strip("|").split(" | "))
        assert name and seen and rule  # noqa: PT018 - none of the three may be empty
        nodes = NODE.findall(held)
        assert nodes, name
        for file, test in nodes:
            assert test in functions_of(ROOT / file), f"{file}::{test}"


def test_the_tests_of_this_folder_are_in_the_table() -> None:
    """Whoever adds an attack at the doors names the class that it is of."""
    named = {test for _, test in NODE.findall(TABLE)}
    assert functions_of(Path(__file__).with_name("test_doors.py")) <= named
