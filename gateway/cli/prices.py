"""`sluice prices`: what a model's tokens cost. A new price is a new version, never an edit.

Numbers are decimals and go as texts, digit by digit: no binary fraction comes between.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Final

import typer

from gateway.cli.admin_client import call, call_all, find_server
from gateway.cli.exits import CliError, Exit
from gateway.cli.options import AsJson, DataDir, NoHeader
from gateway.cli.output import note, print_json, print_table

app = typer.Typer(help="Prices of models, in US dollars.", no_args_is_help=True)

USD: Final = ("input_usd_per_mtok", "cached_usd_per_mtok", "output_usd_per_mtok")
TIERS: Final = ("priority", "default", "flex", "batch")
MULTIPLIERS: Final = tuple(f"{tier}_multiplier" for tier in TIERS)

Usd = Annotated[str | None, typer.Option(metavar="USD")]
Multiplier = Annotated[str | None, typer.Option(metavar="X")]


@app.command("list")
def list_(
    every: Annotated[
        bool, typer.Option("--all", help="Every version, not only those in force.")
    ] = False,
    no_header: NoHeader = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List prices. Example: sluice prices list"""
    rows = call_all(find_server(data_dir), "/prices", params={"all": "true"} if every else None)
    if as_json:
        print_json(rows)
        return
    columns = ("model", "version", *USD, *MULTIPLIERS, "effective_at")
    print_table(
        rows, columns, none="There are no prices: tokens cost nothing.", no_header=no_header
    )


@app.command("set")
def set_(
    model: Annotated[str, typer.Argument(help="The model's name; '*' for all without a price.")],
    input_usd_per_mtok: Usd = None,
    cached_usd_per_mtok: Usd = None,
    output_usd_per_mtok: Usd = None,
    priority: Multiplier = None,
    default: Multiplier = None,
    flex: Multiplier = None,
    batch: Multiplier = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Price a model from now on, in US dollars for a million tokens; tiers multiply it.

    What is not named is as it was; of a first price, cached tokens cost what input does and
    tiers 2, 1, 0.5 and 0.5. Example: sluice prices set llama --input-usd-per-mtok 0.15
    --output-usd-per-mtok 0.60 --flex 0.5
    """
    given = {
        "input_usd_per_mtok": input_usd_per_mtok,
        "cached_usd_per_mtok": cached_usd_per_mtok,
        "output_usd_per_mtok": output_usd_per_mtok,
        "priority_multiplier": priority,
        "default_multiplier": default,
        "flex_multiplier": flex,
        "batch_multiplier": batch,
    }
    body: dict[str, Any] = {}
    for field, text in given.items():
        if text is not None:
            option = field.removesuffix("_multiplier").replace("_", "-")
            body[field] = _decimal(text, f"--{option}")
    if not body:
        raise typer.BadParameter("name what is to change; see sluice prices set --help")
    access = find_server(data_dir)
    before = {row["model"]: row for row in call_all(access, "/prices")}.get(model)
    price = call(access, "POST", "/prices", body=completed(model, body, before))
    if as_json:
        print_json(price)
        return
    print(f"{price['model']}\t{price['version']}")
    note("Set; requests that begin from now on cost it.")


def completed(model: str, body: dict[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Fill a price up from the version before it. Raises: `CliError`: a first one lacks a part."""
    if before is not None:
        kept = {field: before[field] for field in (*USD, *MULTIPLIERS)}
        return {"model": model, **kept, **body}
    if missing := [field for field in (USD[0], USD[2]) if field not in body]:
        raise CliError(f"'{model}' has no price yet: name its {missing[0]}", Exit.USAGE)
    return {"model": model, **body}


def _decimal(text: str, option: str) -> str:
    """Return a number as it was written. Raises: `typer.BadParameter`: it is none."""
    try:
        if Decimal(text).is_finite():
            return text.strip()
    except InvalidOperation:
        pass
    raise typer.BadParameter(f"'{text}' is not a number, as 0.15", param_hint=option)
