"""`sluice tenants`: make, change and show tenants."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

import typer

from gateway.cli.admin_client import call, call_all, find_server
from gateway.cli.options import AsJson, DataDir, IfVersion, segment
from gateway.cli.output import note, print_fields, print_json, print_table

app = typer.Typer(help="Tenants: who shares the machine.", no_args_is_help=True)

_COLUMNS: Final = (
    *("name", "weight", "plan", "ttft_ms", "tpot_ms", "max_gap_ms", "created_at", "id"),
)

TtftMs = Annotated[
    float | None, typer.Option(help="Promised time to the first token; 0: no promise.")
]
TpotMs = Annotated[
    float | None, typer.Option(help="Promised time of each token after it; 0: no promise.")
]
MaxGapMs = Annotated[
    float | None, typer.Option(help="Promised longest gap between two tokens; 0: no promise.")
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="a-z, 0-9, '-', '_', '.'; at most 63.")],
    weight: Annotated[float, typer.Option(help="Its share beside the others'.")] = 1.0,
    plan: Annotated[str | None, typer.Option(help="The plan whose limits it inherits.")] = None,
    ttft_ms: TtftMs = None,
    tpot_ms: TpotMs = None,
    max_gap_ms: MaxGapMs = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Make a tenant. Example: sluice tenants create research --weight 2 --plan basic"""
    body: dict[str, Any] = {"name": name, **_numbers(weight, ttft_ms, tpot_ms, max_gap_ms)}
    if plan is not None:
        body["plan"] = plan
    tenant = call(find_server(data_dir), "POST", "/tenants", body=body)
    if as_json:
        print_json(tenant)
        return
    print(tenant["name"])
    note(f"Made. Give it a key: sluice keys create --tenant {tenant['name']}")


@app.command()
def update(
    name: Annotated[str, typer.Argument(help="The tenant's name.")],
    weight: Annotated[float | None, typer.Option(help="Its share beside the others'.")] = None,
    plan: Annotated[str | None, typer.Option(help="The plan whose limits it inherits.")] = None,
    no_plan: Annotated[bool, typer.Option("--no-plan", help="Take it off its plan.")] = False,
    ttft_ms: TtftMs = None,
    tpot_ms: TpotMs = None,
    max_gap_ms: MaxGapMs = None,
    if_version: IfVersion = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Change a tenant; what is not named stays. Example: sluice tenants update acme --weight 3"""
    changes: dict[str, Any] = {**_numbers(weight, ttft_ms, tpot_ms, max_gap_ms)}
    if plan is not None and no_plan:
        raise typer.BadParameter("--plan and --no-plan exclude each other")
    if plan is not None or no_plan:
        changes["plan"] = plan
    if not changes:
        raise typer.BadParameter(
            "name a --weight, --plan, --no-plan, --ttft-ms, --tpot-ms or --max-gap-ms"
        )
    path = f"/tenants/{segment(name)}"
    tenant = call(find_server(data_dir), "PATCH", path, body=changes, version=if_version)
    if as_json:
        print_json(tenant)
        return
    print(tenant["name"])
    note("Changed; its next request has it, and its weight what waits now.")


@app.command("list")
def list_(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List all tenants. Example: sluice tenants list --json"""
    rows = call_all(find_server(data_dir), "/tenants")
    if as_json:
        print_json(rows)
        return
    print_table(rows, _COLUMNS, none="There are no tenants.")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The tenant's name.")],
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Show a tenant. Example: sluice tenants show acme"""
    tenant = call(find_server(data_dir), "GET", f"/tenants/{segment(name)}")
    if as_json:
        print_json(tenant)
        return
    print_fields(tenant)


def _numbers(
    weight: float | None, ttft_ms: float | None, tpot_ms: float | None, max_gap_ms: float | None
) -> dict[str, float | None]:
    """Gather what was given; a promise of 0 is none. JSON cannot carry what is not finite."""
    given = {"weight": weight, "ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "max_gap_ms": max_gap_ms}
    numbers: dict[str, float | None] = {}
    for name, value in given.items():
        if value is None:
            continue
        if not math.isfinite(value):
            raise typer.BadParameter("must be finite", param_hint=f"--{name.replace('_', '-')}")
        numbers[name] = None if value == 0 and name != "weight" else value
    return numbers
