"""`sluice tokens`: who may use the admin API."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gateway.cli.admin_client import call, call_all, find_server
from gateway.cli.options import AsJson, DataDir, NoHeader, duration_s, segment
from gateway.cli.output import note, print_json, print_table
from gateway.domain.admin import AdminRole

app = typer.Typer(help="Tokens of the admin API.", no_args_is_help=True)


@app.command("list")
def list_(no_header: NoHeader = False, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List tokens, without their secrets. Example: sluice tokens list"""
    rows = call_all(find_server(data_dir), "/tokens")
    if as_json:
        print_json(rows)
        return
    columns = ("kid", "name", "role", "tenant", "created_at", "expires_at", "revoked_at")
    print_table(rows, columns, none="There are no tokens.", no_header=no_header)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose it is, or what for.")],
    role: Annotated[AdminRole, typer.Option(help="What it may do.")],
    tenant: Annotated[
        str | None, typer.Option(help="The tenant of a tenant-owner or a tenant-viewer.")
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option(help="Its life, as 12h, 7d or 2w; default: no end.")
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Issue a token; it is printed this once, alone on stdout.

    Example: sluice tokens create grafana --role viewer --expires-in 90d
    """
    body: dict[str, Any] = {"name": name, "role": role.value}
    if tenant is not None:
        body["tenant"] = tenant
    if expires_in is not None:
        body["expires_in_s"] = duration_s(expires_in, "--expires-in")
    token = call(find_server(data_dir), "POST", "/tokens", body=body)
    if as_json:
        print_json(token)
        return
    print(token["token"])
    note(f"Token {token['kid']} of {token['name']}, {token['role']}. It is shown this once.")


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(help="The token's id or kid.")],
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """End a token at once. Example: sluice tokens revoke 9NzXRRkYEzTT"""
    token = call(find_server(data_dir), "DELETE", f"/tokens/{segment(token_id)}")
    if as_json:
        print_json(token)
        return
    print(token["kid"])
    note(f"Revoked: token {token['kid']} of {token['name']}.")
