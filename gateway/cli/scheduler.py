"""`sluice scheduler`: look into the scheduler of a running server, and set it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from gateway.cli.admin_client import call, find_server
from gateway.cli.options import AsJson, DataDir, IfVersion, NoHeader
from gateway.cli.output import note, print_json, print_table

Row = dict[str, Any]

Model = Annotated[str | None, typer.Option(help="Only this model's scheduler.")]

_BAND_COLUMNS = ("band", "queued", "queued_tokens", "running", "service")
_TENANT_COLUMNS = ("tenant", "org", "band", "weight", "counter", *_BAND_COLUMNS[1:])

app = typer.Typer(help="What runs next: policies, queues and shares.", no_args_is_help=True)


@app.command()
def show(no_header: NoHeader = False, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Show policy, queues and shares, and who set what. Example: sluice scheduler show --json"""
    answer = call(find_server(data_dir), "GET", "/scheduler")
    if as_json:
        print_json(answer["data"])
        return
    for scheduler in answer["data"]:
        _print(scheduler, answer["version"], no_header)


@app.command("set")
def set_(
    policy: Annotated[
        str | None, typer.Option(help="A policy, or three: tenants/keys/requests.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="mixed, low-latency or high-throughput.")
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="One number; may be repeated."),
    ] = None,
    model: Model = None,
    if_version: IfVersion = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Change what runs next, from the next step on, at every server of the same stores.

    Example: sluice scheduler set --policy vtc --set composer.max_step_s=0.05
    """
    changes: dict[str, Any] = {}
    named = {"policy": policy, "preset": preset, "model": model}
    changes |= {name: value for name, value in named.items() if value is not None}
    for text in values or ():
        _put(changes, text)
    if not changes.keys() - {"model"}:
        raise typer.BadParameter("name a --policy, a --preset or a --set NAME=VALUE")
    _print_set(
        call(find_server(data_dir), "PUT", "/scheduler", body=changes, version=if_version), as_json
    )


@app.command()
def reset(
    model: Model = None,
    if_version: IfVersion = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Go back to each server's own settings. Example: sluice scheduler reset --model NAME"""
    params = {} if model is None else {"model": model}
    access = find_server(data_dir)
    answer = call(access, "DELETE", "/scheduler", params=params, version=if_version)
    _print_set(answer, as_json)


def _print_set(answer: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer["data"])
        return
    for scheduler in answer["data"]:
        print(f"{scheduler['model']}\t{scheduler['policy']}\t{scheduler['preset'] or 'custom'}")
    note(f"From the next step on, at other servers within a second. Version {answer['version']}.")


def _print(scheduler: Row, version: int, no_header: bool) -> None:
    """Print single values by their paths and who set them, then the bands, then their tenants."""
    bands: list[Row] = scheduler["state"].pop("bands")
    del scheduler["set"]
    origins = {row["name"]: row["value"] for row in _values(scheduler.pop("origins"), "config.")}
    origins["policy"] = origins["config.fairness.policy"]
    rows = [{"name": "version", "value": version}, *_values(scheduler, "")]
    rows = [row | {"from": origins.get(row["name"])} for row in rows]
    print_table(rows, ("name", "value", "from"), none="", no_header=no_header)
    print()
    print_table(bands, _BAND_COLUMNS, none="No band has had work yet.", no_header=no_header)
    print()
    tenants = [{"band": band["band"]} | tenant for band in bands for tenant in band["tenants"]]
    print_table(tenants, _TENANT_COLUMNS, none="No tenant has work.", no_header=no_header)


def _values(document: Mapping[str, Any], path: str) -> Iterator[Row]:
    for name, item in document.items():
        if isinstance(item, dict):
            yield from _values(item, f"{path}{name}.")
        else:
            yield {"name": f"{path}{name}", "value": item}


def _put(changes: dict[str, Any], text: str) -> None:
    """Read `section.name=value` into a nested document; a value that is no JSON is a text."""
    path, equals, value = text.partition("=")
    *sections, name = path.split(".")
    if not equals or not all((*sections, name)):
        raise typer.BadParameter(
            f"'{text}' is not NAME=VALUE, as composer.max_step_s=0.05", param_hint="--set"
        )
    for section in sections:
        changes = changes.setdefault(section, {})
        if not isinstance(changes, dict):
            raise typer.BadParameter(f"'{text}' is below a value", param_hint="--set")
    changes[name] = _decoded(value)


def _decoded(text: str) -> object:
    """Read JSON; what is none, or cannot be sent as it, is a text."""
    try:
        value: object = json.loads(text)
        json.dumps(value, allow_nan=False)
    except ValueError:
        return text
    return value
