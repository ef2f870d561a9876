"""`sluice keys`: issue, change, rotate, show and revoke API keys."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gateway.cli.admin_client import call, call_all, find_server
from gateway.cli.options import AsJson, DataDir, IfVersion, NoHeader, duration_s, names, segment
from gateway.cli.output import note, print_fields, print_json, print_table
from gateway.credentials import ADMIN_PREFIX, KEY_PREFIX, new_token
from gateway.domain import Tier

app = typer.Typer(help="API keys of tenants.", no_args_is_help=True)

KeyId = Annotated[str, typer.Argument(help="The key's id or kid.")]
Models = Annotated[
    str | None, typer.Option(help="The only models it may use, separated by commas.")
]
Cidrs = Annotated[
    str | None,
    typer.Option(help="The only networks it may come from, as 10.0.0.0/8, by commas."),
]


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="Whose key it is.")],
    name: Annotated[str, typer.Option(help="What it is for.")] = "default",
    expires_in: Annotated[
        str | None, typer.Option(help="Its life, as 90s, 30m, 12h, 7d or 2w; default: no end.")
    ] = None,
    max_tier: Annotated[
        Tier | None,
        typer.Option(help="The best service tier that its requests get; unset: default."),
    ] = None,
    models: Models = None,
    cidrs: Cidrs = None,
    no_batch: Annotated[bool, typer.Option("--no-batch", help="No batches with it.")] = False,
    admin_read: Annotated[
        bool, typer.Option("--admin-read", help="Let it read what the admin API has of its tenant.")
    ] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Issue a key; its token is printed this once, alone on stdout.

    Example: sluice keys create --tenant acme --expires-in 90s --models llama --cidrs 10.0.0.0/8
    """
    body: dict[str, Any] = {"tenant": tenant, "name": name}
    if max_tier is not None:
        body["max_tier"] = max_tier.value
    if expires_in is not None:
        body["expires_in_s"] = duration_s(expires_in, "--expires-in")
    body |= _scopes(models, cidrs)
    # What is not asked for is not sent: a server of an older version knows no scopes.
    if no_batch:
        body["allows_batch"] = False
    if admin_read:
        body["admin_read"] = True
    key = call(find_server(data_dir), "POST", "/keys", body=body)
    if as_json:
        print_json(key)
        return
    print(key["key"])
    until = f", ends at {key['expires_at']}" if key["expires_at"] else ""
    note(f"Key {key['kid']} of {key['tenant']}{until}. The token is shown this once.")


@app.command()
def draw(
    num_keys: Annotated[
        int, typer.Argument(min=1, max=1000, metavar="[NUMBER]", help="How many to draw.")
    ] = 1,
    admin: Annotated[
        bool, typer.Option("--admin", help="Draw admin tokens, as SLUICE_INIT_ADMIN_TOKEN takes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Draw keys for SLUICE_INIT_KEYS, separated by commas; no server knows them yet.

    Example: SLUICE_INIT_KEYS=$(sluice keys draw 2) sluice serve
    """
    drawn = [new_token(ADMIN_PREFIX if admin else KEY_PREFIX).text for _ in range(num_keys)]
    if as_json:
        print_json(drawn)
        return
    print(",".join(drawn))


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.")] = None,
    no_header: NoHeader = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List keys. Example: sluice keys list --tenant acme --json"""
    params = {} if tenant is None else {"tenant": tenant}
    rows = call_all(find_server(data_dir), "/keys", params=params)
    if as_json:
        print_json(rows)
        return
    times = ("created_at", "expires_at", "last_used_at")
    columns = ("kid", "tenant", "name", "max_tier", "status", *times)
    print_table(rows, columns, none="There are no keys.", no_header=no_header)


@app.command()
def show(key_id: KeyId, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Show a key, without its token. Example: sluice keys show 9NzXRRkYEzTT"""
    key = call(find_server(data_dir), "GET", f"/keys/{segment(key_id)}")
    if as_json:
        print_json(key)
        return
    print_fields(key)


@app.command()
def update(
    key_id: KeyId,
    name: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    max_tier: Annotated[
        Tier | None, typer.Option(help="The best service tier that its requests get.")
    ] = None,
    models: Models = None,
    any_model: Annotated[bool, typer.Option("--any-model", help="Hold it to no models.")] = False,
    cidrs: Cidrs = None,
    any_address: Annotated[
        bool, typer.Option("--any-address", help="Hold it to no networks.")
    ] = False,
    batch: Annotated[
        bool | None, typer.Option("--batch/--no-batch", help="Whether batches may use it.")
    ] = None,
    admin_read: Annotated[
        bool | None,
        typer.Option(
            "--admin-read/--no-admin-read", help="Whether it reads its tenant's admin API."
        ),
    ] = None,
    if_version: IfVersion = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Change a key; what is not named stays.

    Example: sluice keys update 9NzXRRkYEzTT --models llama,qwen --no-batch
    """
    if (models is not None and any_model) or (cidrs is not None and any_address):
        raise typer.BadParameter("name what it is held to, or that it is held to nothing")
    given = {
        "name": name,
        "max_tier": None if max_tier is None else max_tier.value,
        "allows_batch": batch,
        "admin_read": admin_read,
    }
    changes: dict[str, Any] = {field: one for field, one in given.items() if one is not None}
    changes |= _scopes(models, cidrs)
    if any_model:
        changes["models"] = None
    if any_address:
        changes["cidrs"] = None
    if not changes:
        raise typer.BadParameter("name what is to change; see sluice keys update --help")
    path = f"/keys/{segment(key_id)}"
    key = call(find_server(data_dir), "PATCH", path, body=changes, version=if_version)
    if as_json:
        print_json(key)
        return
    print(key["kid"])
    note("Changed; its next request has it.")


@app.command()
def rotate(
    key_id: KeyId,
    grace: Annotated[
        str | None,
        typer.Option(help="How long the present secret still works, as 60s, 24h; default: a day."),
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Give a key a new secret; its new token is printed this once, alone on stdout.

    Example: sluice keys rotate 9NzXRRkYEzTT --grace 60s
    """
    body = {}
    if grace is not None:
        body["grace_s"] = duration_s(grace, "--grace", may_be_zero=True)
    key = call(find_server(data_dir), "POST", f"/keys/{segment(key_id)}/rotate", body=body)
    if as_json:
        print_json(key)
        return
    print(key["key"])
    until = key.get("old_secret_expires_at")
    old = f"The old secret works until {until}" if until else "The old secret has ended"
    note(f"Key {key['kid']} of {key['tenant']} has a new secret, shown this once. {old}.")


@app.command()
def revoke(key_id: KeyId, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """End a key at once. Example: sluice keys revoke 9NzXRRkYEzTT"""
    key = call(find_server(data_dir), "DELETE", f"/keys/{segment(key_id)}")
    if as_json:
        print_json(key)
        return
    print(key["kid"])
    note(f"Revoked: key {key['kid']} of {key['tenant']}.")


def _scopes(models: str | None, cidrs: str | None) -> dict[str, Any]:
    given = {"models": models, "cidrs": cidrs}
    return {field: names(text) for field, text in given.items() if text is not None}
