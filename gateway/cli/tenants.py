"""`sluice tenants`: make, change and show tenants."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

import typer

from gateway.cli.admin_client import call, call_all, find_server
from gateway.cli.options import AsJson, DataDir, IfVersion, NoHeader, segment
from gateway.cli.output import note, print_fields, print_json, print_table
from gateway.domain import Tier

app = typer.Typer(help="Tenants: who shares the machine.", no_args_is_help=True)

_COLUMNS: Final = (
    *("name", "weight", "org", "plan", "ttft_ms", "tpot_ms", "max_gap_ms"),
    *("max_tier", "created_at", "id"),
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


MaxTier = Annotated[Tier | None, typer.Option(help="The best service tier of any of its keys.")]
AllowModel = Annotated[
    list[str] | None, typer.Option(help="A model that its keys may use, and no others; repeat it.")
]
AllowAddress = Annotated[
    list[str] | None,
    typer.Option(help="A network that its keys may come from, as 10.0.0.0/8, and no others."),
]
MaxKeys = Annotated[
    int | None, typer.Option(min=0, help="How many live keys it may have; 0: any number.")
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="a-z, 0-9, '-', '_', '.'; at most 63.")],
    weight: Annotated[float, typer.Option(help="Its share beside the others'.")] = 1.0,
    plan: Annotated[str | None, typer.Option(help="The plan whose limits it inherits.")] = None,
    org: Annotated[str | None, typer.Option(help="The org whose share it shares.")] = None,
    ttft_ms: TtftMs = None,
    tpot_ms: TpotMs = None,
    max_gap_ms: MaxGapMs = None,
    max_tier: MaxTier = None,
    allow_model: AllowModel = None,
    allow_address: AllowAddress = None,
    max_keys: MaxKeys = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Make a tenant. Example: sluice tenants create research --weight 2 --plan basic"""
    body: dict[str, Any] = {"name": name, **_numbers(weight, ttft_ms, tpot_ms, max_gap_ms)}
    if plan is not None:
        body["plan"] = plan
    if org is not None:
        body["org"] = org
    body |= _ceilings(max_tier, allow_model, allow_address, max_keys)
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
    org: Annotated[str | None, typer.Option(help="The org whose share it shares.")] = None,
    no_org: Annotated[bool, typer.Option("--no-org", help="Take it out of its org.")] = False,
    ttft_ms: TtftMs = None,
    tpot_ms: TpotMs = None,
    max_gap_ms: MaxGapMs = None,
    max_tier: MaxTier = None,
    allow_model: AllowModel = None,
    any_model: Annotated[bool, typer.Option("--any-model", help="All models.")] = False,
    allow_address: AllowAddress = None,
    any_address: Annotated[bool, typer.Option("--any-address", help="All networks.")] = False,
    max_keys: MaxKeys = None,
    trace_prompts: Annotated[
        bool | None,
        typer.Option(
            "--trace-prompts/--no-trace-prompts",
            help="Whether its traces show what it sends and is answered.",
        ),
    ] = None,
    if_version: IfVersion = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Change a tenant; what is not named stays.

    Example: sluice tenants update acme --weight 3 --max-tier default --allow-model llama
    """
    changes: dict[str, Any] = {**_numbers(weight, ttft_ms, tpot_ms, max_gap_ms)}
    if plan is not None and no_plan:
        raise typer.BadParameter("--plan and --no-plan exclude each other")
    if plan is not None or no_plan:
        changes["plan"] = plan
    if org is not None and no_org:
        raise typer.BadParameter("--org and --no-org exclude each other")
    if org is not None or no_org:
        changes["org"] = org
    if (allow_model and any_model) or (allow_address and any_address):
        raise typer.BadParameter("name what its keys are held to, or that it is nothing")
    changes |= _ceilings(max_tier, allow_model, allow_address, max_keys)
    if any_model:
        changes["models"] = None
    if any_address:
        changes["cidrs"] = None
    if trace_prompts is not None:
        changes["trace_prompts"] = trace_prompts
    if not changes:
        raise typer.BadParameter("name what is to change; see sluice tenants update --help")
    path = f"/tenants/{segment(name)}"
    tenant = call(find_server(data_dir), "PATCH", path, body=changes, version=if_version)
    if as_json:
        print_json(tenant)
        return
    print(tenant["name"])
    note("Changed; its next request has it, and its weight what waits now.")


@app.command("list")
def list_(no_header: NoHeader = False, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List all tenants. Example: sluice tenants list --json"""
    rows = call_all(find_server(data_dir), "/tenants")
    if as_json:
        print_json(rows)
        return
    print_table(rows, _COLUMNS, none="There are no tenants.", no_header=no_header)


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


@app.command()
def delete(
    name: Annotated[str, typer.Argument(help="The tenant's name.")],
    if_version: IfVersion = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Archive a tenant for good: its keys end, its ledger stays.

    Its keys and admin tokens are revoked and what it has running ends; its name is free again.

    Example: sluice tenants delete research
    """
    path = f"/tenants/{segment(name)}"
    gone = call(find_server(data_dir), "DELETE", path, version=if_version)
    if as_json:
        print_json(gone)
        return
    print(gone["name"])
    ended = f"keys {gone['revoked_keys']}, admin tokens {gone['revoked_tokens']}"
    note(f"Archived. Revoked: {ended}. Its ledger: sluice usage --tenant {gone['name']}")


def _ceilings(
    max_tier: Tier | None,
    models: list[str] | None,
    addresses: list[str] | None,
    max_keys: int | None,
) -> dict[str, Any]:
    """Gather what was given: a server of an older version knows no ceilings."""
    given: dict[str, Any] = {"models": models or None, "cidrs": addresses or None}
    given = {name: value for name, value in given.items() if value is not None}
    if max_tier is not None:
        given["max_tier"] = max_tier.value
    if max_keys is not None:
        given["max_keys"] = max_keys or None
    return given


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
