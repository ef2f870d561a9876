"""The chart's README: what make_readme.py writes, of values that all say what they are."""

from __future__ import annotations

from typing import Any

import yaml

from helm.sluice.make_readme import readme, rows
from tests.helm.rendered import CHART

VALUES = (CHART / "values.yaml").read_text()


def test_it_is_what_the_script_writes() -> None:
    """After a change of values.yaml: `python helm/sluice/make_readme.py`."""
    assert (CHART / "README.md").read_text() == readme(VALUES)


def leaves(values: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Name all that can be set."""
    if not isinstance(values, dict) or not values:
        return {path}
    return {leaf for key, value in values.items() for leaf in leaves(value, (*path, key))}


def test_every_value_says_what_it_is() -> None:
    """Each has a comment, or is below a key that has one for all of it."""
    said = {row.path for row in rows(VALUES)}
    for leaf in leaves(yaml.safe_load(VALUES)):
        # A section's comment is for its head alone.
        assert any(leaf[:depth] in said for depth in range(2, len(leaf) + 1)) or (
            len(leaf) <= 2 and leaf[:1] in said and not any(p[:-1] == leaf[:1] for p in said)
        ), leaf


def test_a_table_and_a_default_are_written() -> None:
    """Keys of a section are its rows, with their paths and what they are by default."""
    text = (
        "# Of a file.\n\n# What a is.\na:\n  # One | two.\n  b: 1\n  c:\n    # Three,\n"
        "    # of two lines.\n    d: [x]\n\n# What e is.\ne: {}\n"
    )
    assert readme(text).partition("\n## ")[2] == (
        "a\n\nWhat a is.\n\n| key | default | meaning |\n|---|---|---|\n"
        '| `b` | `1` | One \\| two. |\n| `c.d` | `["x"]` | Three, of two lines. |\n'
        "\n## e\n\nWhat e is.\n\nDefault: `{}`\n"
    )
