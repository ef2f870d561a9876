"""`sluice tenants`: make, change and list tenants."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from gateway.cli.admin_client import call, find_server
from gateway.cli.output import note, print_json, print_table

app = typer.Typer(help="Tenants: who shares the machine.", no_args_is_help=True)

DataDir = Annotated[
    Path | None, typer.Option(help="The data directory of a server on this machine.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
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
    ttft_ms: TtftMs = None,
    tpot_ms: TpotMs = None,
    max_gap_ms: MaxGapMs = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Make a tenant. Example: sluice tenants create research --weight 2 --ttft-ms 500"""
    body = {"name": name, **_numbers(weight, ttft_ms, tpot_ms, max_gap_ms)}
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
    ttft_ms: TtftMs = None,
    tpot_ms: TpotMs = None,
    max_gap_ms: MaxGapMs = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Change a tenant; what is not named stays. Example: sluice tenants update acme --weight 3"""
    changes = _numbers(weight, ttft_ms, tpot_ms, max_gap_ms)
    if not changes:
        raise typer.BadParameter("name a --weight, --ttft-ms, --tpot-ms or --max-gap-ms")
    path = f"/tenants/{quote(name, safe='')}"
    tenant = call(find_server(data_dir), "PATCH", path, body=changes)
    if as_json:
        print_json(tenant)
        return
    print(tenant["name"])
    note("Changed; its next request has it, and its weight what waits now.")


@app.command("list")
def list_(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List all tenants. Example: sluice tenants list --json"""
    rows = call(find_server(data_dir), "GET", "/tenants")["data"]
    if as_json:
        print_json(rows)
        return
    columns = ("name", "weight", "ttft_ms", "tpot_ms", "max_gap_ms", "created_at", "id")
    print_table(rows, columns, none="There are no tenants.")


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
