"""`sluice plans`: limits by name, which tenants inherit."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gateway.cli.admin_client import call, call_all, find_server
from gateway.cli.limits import Unset, readable_quota, unset_fields, with_limits
from gateway.cli.options import AsJson, DataDir, IfVersion, NoHeader, segment
from gateway.cli.output import note, print_fields, print_json, print_table

app = typer.Typer(help="Plans: limits by name, for many tenants.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The plan's name.")]


@app.command("list")
def list_(no_header: NoHeader = False, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List all plans. Example: sluice plans list"""
    rows = call_all(find_server(data_dir), "/plans")
    if as_json:
        print_json(rows)
        return
    table = [{"name": row["name"], **readable_quota(row["quota"])} for row in rows]
    print_table(
        table, tuple(table[0]) if table else (), none="There are no plans.", no_header=no_header
    )


@app.command()
def show(name: Name, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Show a plan. Example: sluice plans show basic --json"""
    _print(call(find_server(data_dir), "GET", f"/plans/{segment(name)}"), as_json)


@app.command()
@with_limits
def create(
    name: Name, limits: dict[str, Any], as_json: AsJson = False, data_dir: DataDir = None
) -> None:
    """Make a plan. Example: sluice plans create basic --rpm 60 --budget-usd 25"""
    body = {"name": name, "quota": limits}
    plan = call(find_server(data_dir), "POST", "/plans", body=body)
    _print(plan, as_json)
    note(f"Made. Put tenants on it: sluice tenants update NAME --plan {name}")


@app.command()
@with_limits
def update(
    name: Name,
    limits: dict[str, Any],
    unset: Unset = None,
    if_version: IfVersion = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Change a plan; what is not named stays.

    Example: sluice plans update basic --rpm 120 --unset concurrency
    """
    quota = changed_limits(limits, unset)
    path = f"/plans/{segment(name)}"
    plan = call(find_server(data_dir), "PATCH", path, body={"quota": quota}, version=if_version)
    _print(plan, as_json)
    note("Changed; it holds for the next request of every tenant on it.")


@app.command()
def delete(
    name: Name, if_version: IfVersion = None, as_json: AsJson = False, data_dir: DataDir = None
) -> None:
    """Remove a plan that no tenant is on. Example: sluice plans delete basic"""
    plan = call(find_server(data_dir), "DELETE", f"/plans/{segment(name)}", version=if_version)
    if as_json:
        print_json(plan)
        return
    print(name)
    note("Removed.")


def changed_limits(limits: dict[str, Any], unset: str | None) -> dict[str, Any]:
    """Lay what is taken back over what is set.

    Raises: `typer.BadParameter`: nothing is either, or something both.
    """
    taken_back = [] if unset is None else unset_fields(unset)
    if both := sorted(set(limits) & set(taken_back)):
        raise typer.BadParameter(f"'{both[0]}' is set and taken back", param_hint="--unset")
    if not limits and not taken_back:
        raise typer.BadParameter("name a limit to set, or --unset one")
    return {**limits, **dict.fromkeys(taken_back)}


def _print(plan: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(plan)
        return
    print_fields({**plan, "quota": readable_quota(plan["quota"])})
