"""`sluice keys`: issue, list and revoke API keys."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import quote

import typer

from gateway.cli.admin_client import call, find_server
from gateway.cli.output import note, print_json, print_table
from gateway.cli.tenants import AsJson, DataDir
from gateway.domain import Tier

app = typer.Typer(help="API keys of tenants.", no_args_is_help=True)

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>s|m|h|d|w)?", re.ASCII)
_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="Whose key it is.")],
    name: Annotated[str, typer.Option(help="What it is for.")] = "default",
    expires_in: Annotated[
        str | None, typer.Option(help="Its life, as 90s, 30m, 12h, 7d or 2w; default: no end.")
    ] = None,
    max_tier: Annotated[
        Tier, typer.Option(help="The best service tier that its requests get.")
    ] = Tier.DEFAULT,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Issue a key; its token is printed this once, alone on stdout.

    Example: sluice keys create --tenant acme --expires-in 90s --max-tier priority
    """
    body: dict[str, object] = {"tenant": tenant, "name": name, "max_tier": max_tier.value}
    if expires_in is not None:
        body["expires_in_s"] = duration_s(expires_in)
    key = call(find_server(data_dir), "POST", "/keys", body=body)
    if as_json:
        print_json(key)
        return
    print(key["key"])
    until = f", ends at {key['expires_at']}" if key["expires_at"] else ""
    note(f"Key {key['kid']} of {key['tenant']}{until}. The token is shown this once.")


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List keys. Example: sluice keys list --tenant acme --json"""
    params = {} if tenant is None else {"tenant": tenant}
    rows = call(find_server(data_dir), "GET", "/keys", params=params)["data"]
    if as_json:
        print_json(rows)
        return
    times = ("created_at", "expires_at", "last_used_at")
    columns = ("kid", "tenant", "name", "max_tier", "status", *times)
    print_table(rows, columns, none="There are no keys.")


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id or kid.")],
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """End a key at once. Example: sluice keys revoke 9NzXRRkYEzTT"""
    key = call(find_server(data_dir), "DELETE", f"/keys/{quote(key_id, safe='')}")
    if as_json:
        print_json(key)
        return
    print(key["kid"])
    note(f"Revoked: key {key['kid']} of {key['tenant']}.")


def duration_s(text: str) -> float:
    """Read a duration, as `90s`; without a unit it is in seconds.

    Raises: `typer.BadParameter`.
    """
    found = _DURATION.fullmatch(text)
    seconds = float(found["number"]) * _SECONDS[found["unit"]] if found else 0.0
    if not 0 < seconds < float("inf"):
        raise typer.BadParameter(
            f"'{text}' is not a duration above 0, as 90s, 30m, 12h, 7d or 2w",
            param_hint="--expires-in",
        )
    return seconds
