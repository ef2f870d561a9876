"""`sluice usage`: what was used, and what it cost."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from gateway.cli.admin_client import call, download, find_server
from gateway.cli.options import AsJson, DataDir, NoHeader, nano_to_usd
from gateway.cli.output import note, print_json, print_table

_SUMS = ("input_tokens", "cached_tokens", "output_tokens", "usd", "requests")


def usage(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    from_: Annotated[
        str | None, typer.Option("--from", help="From this date or time on, as 2026-11-01.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="Up to this date and with it, or up to this time.")
    ] = None,
    group_by: Annotated[
        str | None, typer.Option(help="day, hour, tenant, model, key, tier; by commas.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for a spreadsheet.")] = False,
    no_header: NoHeader = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Show usage from the ledger. Example: sluice usage --tenant acme --group-by day,model"""
    if as_csv and as_json:
        raise typer.BadParameter("--csv and --json exclude each other")
    given = {"tenant": tenant, "from": from_, "to": to, "group_by": group_by}
    params = {name: value for name, value in given.items() if value is not None}
    access = find_server(data_dir)
    if as_csv:
        for piece in download(access, "/usage", params={**params, "format": "csv"}):
            sys.stdout.write(piece)
        return
    found = call(access, "GET", "/usage", params=params)
    if as_json:
        print_json(found)
        return
    rows = [_readable(row) for row in found["rows"]]
    groups = [name for name in (rows[0] if rows else ()) if name not in _SUMS]
    print_table(rows, (*groups, *_SUMS), none="Nothing was used.", no_header=no_header)
    total = _readable(found["total"])
    note("In all: " + ", ".join(f"{total[name]} {name.replace('_', ' ')}" for name in _SUMS))


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "usd" if name == "nano_usd" else name: nano_to_usd(value) if name == "nano_usd" else value
        for name, value in row.items()
    }
