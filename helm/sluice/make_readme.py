"""Writes README.md from the comments of values.yaml; run `python helm/sluice/make_readme.py`.

A comment belongs to the key below it. One before a key at the left margin with keys below it is a
section's; every other is a row of the section's table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

HERE = Path(__file__).parent
_KEY = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z][A-Za-z0-9_]*):(?= |$)")
_HEAD = """\
# The chart of Sluice

Written by make_readme.py from values.yaml; how to install it, and why it is as it is, stands in
[docs/kubernetes.md](../../docs/kubernetes.md). `ci/` has values for each way to run it, which the
tests render, validate and start.
"""


class Row(NamedTuple):
    """Hold a key that has a comment: its path, and the comment."""

    path: tuple[str, ...]
    text: str


def rows(text: str) -> Iterator[Row]:
    """Yield what comments of a values.yaml say, in its order."""
    comment: list[str] = []
    path: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped.removeprefix("#").strip())
            continue
        found = _KEY.match(line)
        if found is not None:
            path[len(found["indent"]) // 2 :] = [found["key"]]
            if comment:
                yield Row(tuple(path), " ".join(comment))
        # A comment that no key follows is the file's own.
        comment = []


def value_at(values: Any, path: list[str] | tuple[str, ...]) -> Any:
    """Return the value at a path."""
    for key in path:
        values = values[key]
    return values


def readme(text: str) -> str:
    """Write the README for a values.yaml."""
    values, all_rows = yaml.safe_load(text), list(rows(text))
    parts, has_table = [_HEAD], False
    for row in all_rows:
        # What is said of the keys below says what the default is.
        is_above = any(each.path[:-1] == row.path for each in all_rows)
        default = json.dumps(value_at(values, row.path), ensure_ascii=False)
        if len(row.path) == 1:
            parts.append(f"\n## {row.path[0]}\n\n{row.text}\n")
            if not is_above:
                parts.append(f"\nDefault: `{default}`\n")
            has_table = False
            continue
        if not has_table:
            parts.append("\n| key | default | meaning |\n|---|---|---|\n")
            has_table = True
        shown = "" if is_above else f"`{default}`"
        meaning = row.text.replace("|", "\\|")
        parts.append(f"| `{'.'.join(row.path[1:])}` | {shown} | {meaning} |\n")
    return "".join(parts)


if __name__ == "__main__":
    (HERE / "README.md").write_text(readme((HERE / "values.yaml").read_text()))
