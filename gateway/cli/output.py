"""What commands print: data on stdout, as a table or as JSON; notes on stderr.

Some of it was written by tenants, as the `custom_id` of a batch's line, and is read by operators at
a terminal: what is no letter there is written out, and neither moves a cursor nor begins a line.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

_NOT_ASCII: Final = re.compile(r"[^\x20-\x7e]")


def print_json(document: Any) -> None:  # whatever the server answered
    """Print one JSON document on one line."""
    text = json.dumps(document, ensure_ascii=False)
    print(_NOT_ASCII.sub(lambda found: _plain(found[0], json.dumps(found[0])[1:-1]), text))


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
    print(printable(text), file=sys.stderr)


def printable(text: str) -> str:
    """Write out what is neither a letter nor the end of a line."""
    if text.isprintable():
        return text
    return "".join(
        one if one == "\n" else _plain(one, one.encode("unicode_escape").decode()) for one in text
    )


def _plain(one: str, written: str) -> str:
    return one if one.isprintable() else written


def _cell(value: object) -> str:
    """Write a value as one cell of one line."""
    return printable(_text(value)).replace("\n", "\\n")


def _text(value: object) -> str:
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
