"""What commands print: data on stdout, as a table or as JSON; notes on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def print_json(document: Any) -> None:  # whatever the server answered
    """Print one JSON document on one line."""
    print(json.dumps(document, ensure_ascii=False))


def print_table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    none: str,
    no_header: bool = False,
) -> None:
    """Print chosen fields of `rows`; `none` goes to stderr where there are no rows.

    Piped, it is one line a row with tabs between, for `cut` and `awk`, below one with the fields'
    names unless there is to be `no_header`; on a terminal, a table with times in UTC.
    """
    if not rows:
        note(none)
        return
    if not sys.stdout.isatty():
        if not no_header:
            print("\t".join(columns))
        for row in rows:
            print("\t".join(_cell(row[column]) for column in columns))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=not no_header)
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(_short(column, _cell(row[column])) for column in columns))
    # Names come from a person: never read as markup.
    Console(markup=False, highlight=False, emoji=False).print(table)


def print_fields(document: Mapping[str, Any], prefix: str = "") -> None:
    """Print one thing, a field a line, its name and value with a tab between."""
    for name, value in document.items():
        if isinstance(value, Mapping):
            print_fields(value, f"{prefix}{name}.")
        else:
            print(f"{prefix}{name}\t{_cell(value)}")


def note(text: str) -> None:
    """Print a note on stderr."""
    print(text, file=sys.stderr)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _short(column: str, cell: str) -> str:
    """Give a person times to the second, in UTC; scripts get them as the server sent them."""
    if column.endswith("_at") and len(cell) > 19:
        return cell[:19].replace("T", " ")
    return cell
