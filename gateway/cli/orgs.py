"""`sluice orgs`: owners of tenants, which share the machine's service as one."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

import typer

from gateway.cli.admin_client import call, call_all, find_server
from gateway.cli.options import AsJson, DataDir, IfVersion, NoHeader, segment
from gateway.cli.output import note, print_fields, print_json, print_table

app = typer.Typer(help="Orgs: whose tenants share one share of the machine.", no_args_is_help=True)

_COLUMNS: Final = ("name", "weight", "created_at", "id")

Name = Annotated[str, typer.Argument(help="The org's name.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="a-z, 0-9, '-', '_', '.'; at most 63.")],
    weight: Annotated[
        float, typer.Option(help="Its share beside other orgs, and tenants of none.")
    ] = 1.0,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Make an org. Example: sluice orgs create umbrella --weight 4"""
    body = {"name": name, "weight": _finite(weight)}
    org = call(find_server(data_dir), "POST", "/orgs", body=body)
    if as_json:
        print_json(org)
        return
    print(org["name"])
    note(f"Made. Put tenants into it: sluice tenants update NAME --org {org['name']}")


@app.command()
def update(
    name: Name,
    weight: Annotated[
        float, typer.Option(help="Its share beside other orgs, and tenants of none.")
    ],
    if_version: IfVersion = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Change an org's weight. Example: sluice orgs update umbrella --weight 2"""
    path, body = f"/orgs/{segment(name)}", {"weight": _finite(weight)}
    org = call(find_server(data_dir), "PATCH", path, body=body, version=if_version)
    if as_json:
        print_json(org)
        return
    print(org["name"])
    note("Changed, for what waits now too.")


@app.command("list")
def list_(no_header: NoHeader = False, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List all orgs. Example: sluice orgs list --json"""
    rows = call_all(find_server(data_dir), "/orgs")
    if as_json:
        print_json(rows)
        return
    print_table(
        rows,
        _COLUMNS,
        none="There are no orgs: every tenant stands by itself.",
        no_header=no_header,
    )


@app.command()
def show(name: Name, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Show an org. Example: sluice orgs show umbrella"""
    org: dict[str, Any] = call(find_server(data_dir), "GET", f"/orgs/{segment(name)}")
    if as_json:
        print_json(org)
        return
    print_fields(org)


@app.command()
def delete(
    name: Name, if_version: IfVersion = None, as_json: AsJson = False, data_dir: DataDir = None
) -> None:
    """Remove an org that no tenant belongs to. Example: sluice orgs delete umbrella"""
    org = call(find_server(data_dir), "DELETE", f"/orgs/{segment(name)}", version=if_version)
    if as_json:
        print_json(org)
        return
    print(name)
    note("Removed.")


def _finite(weight: float) -> float:
    """Refuse what JSON cannot carry."""
    if not math.isfinite(weight):
        raise typer.BadParameter("must be finite", param_hint="--weight")
    return weight
