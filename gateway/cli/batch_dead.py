"""`sluice batch dead`: what killed its workers, listed and run again, with an admin's token."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from gateway.cli.admin_client import call, call_all, find_server
from gateway.cli.exits import CliError, Exit
from gateway.cli.options import AsJson, DataDir, NoHeader
from gateway.cli.output import note, print_json, print_table

app = typer.Typer(
    help="Requests of batches that killed their workers; for operators, as 'sluice tenants' is.",
    no_args_is_help=True,
)

_COLUMNS: Final = ("tenant", "batch", "line", "custom_id", "deaths", "since")


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Those of this tenant alone.")] = None,
    batch: Annotated[str | None, typer.Option(help="Those of this batch alone.")] = None,
    no_header: NoHeader = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List what waits for an operator. Example: sluice batch dead list --tenant acme"""
    chosen = {"tenant": tenant, "batch": batch}
    params = {name: value for name, value in chosen.items() if value is not None}
    rows = call_all(find_server(data_dir), "/batches/dead", params=params)
    if as_json:
        print_json(rows)
        return
    print_table(rows, _COLUMNS, none="Nothing waits for an operator.", no_header=no_header)


@app.command()
def requeue(
    batch: Annotated[str, typer.Argument(metavar="ID", help="The batch's id.")],
    line: Annotated[
        list[int] | None,
        typer.Option(min=1, help="A line of its input, repeat it; unset: all that wait."),
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Have requests run again; each one's line is printed on stdout.

    One that kills another worker waits again at once. Example: sluice batch dead requeue batch_68a0
    """
    body: dict[str, Any] = {"batch": batch} | ({"lines": line} if line else {})
    done = call(find_server(data_dir), "POST", "/batches/dead/requeue", body=body)
    if as_json:
        print_json(done)
        return
    if not done["lines"]:
        which = "no such line" if line else "nothing"
        raise CliError(f"{which} of {batch} waits for an operator", Exit.NOT_FOUND)
    for number in done["lines"]:
        print(number)
    note(f"{len(done['lines'])} run again, within seconds.")
