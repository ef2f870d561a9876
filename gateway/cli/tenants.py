"""`sluice tenants`: make and list tenants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.admin_client import call, find_server
from gateway.cli.output import note, print_json, print_table

app = typer.Typer(help="Tenants: who shares the machine.", no_args_is_help=True)

DataDir = Annotated[
    Path | None, typer.Option(help="The data directory of a server on this machine.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="a-z, 0-9, '-', '_', '.'; at most 63.")],
    weight: Annotated[float, typer.Option(help="Its share beside the others'.")] = 1.0,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Make a tenant. Example: sluice tenants create research --weight 2"""
    tenant = call(
        find_server(data_dir), "POST", "/tenants", body={"name": name, "weight": _finite(weight)}
    )
    if as_json:
        print_json(tenant)
        return
    print(tenant["name"])
    note(f"Made. Give it a key: sluice keys create --tenant {tenant['name']}")


@app.command("list")
def list_(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List all tenants. Example: sluice tenants list --json"""
    rows = call(find_server(data_dir), "GET", "/tenants")["data"]
    if as_json:
        print_json(rows)
        return
    print_table(rows, ("name", "weight", "created_at", "id"), none="There are no tenants.")


def _finite(weight: float) -> float:
    """Refuse what JSON cannot carry; the server checks the rest."""
    if weight != weight or weight in (float("inf"), float("-inf")):
        raise typer.BadParameter("must be finite", param_hint="--weight")
    return weight
