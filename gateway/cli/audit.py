"""`sluice audit`: who changed what, and whether the log is whole."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from gateway.cli.admin_client import call, call_all, find_server
from gateway.cli.exits import CliError
from gateway.cli.options import AsJson, DataDir, NoHeader
from gateway.cli.output import note, print_json, print_table

app = typer.Typer(help="The audit log.", no_args_is_help=True)

# The whole log is walked: seven thousand records take a second, and each change makes one.
_WALK_S: Final = 3600.0


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only what concerns this tenant.")] = None,
    actor: Annotated[str | None, typer.Option(help="Only what this actor did.")] = None,
    action: Annotated[str | None, typer.Option(help="Only this action, as key.revoke.")] = None,
    from_: Annotated[str | None, typer.Option("--from", help="From this time on.")] = None,
    to: Annotated[str | None, typer.Option(help="Up to this time, as 2026-11-30T08:00Z.")] = None,
    last: Annotated[int, typer.Option(min=1, max=1000, help="So many records at most.")] = 50,
    every: Annotated[bool, typer.Option("--all", help="All records.")] = False,
    no_header: NoHeader = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List what was changed, the newest first. Example: sluice audit list --tenant acme"""
    given = {"tenant": tenant, "actor": actor, "action": action, "from": from_, "to": to}
    params = {name: value for name, value in given.items() if value is not None}
    access = find_server(data_dir)
    if every:
        rows = call_all(access, "/audit", params=params)
    else:
        rows = call(access, "GET", "/audit", params={**params, "limit": str(last)})["data"]
    if as_json:
        print_json(rows)
        return
    columns = ("seq", "at", "actor", "actor_role", "ip", "action", "object_kind", "object_id")
    print_table(rows, columns, none="Nothing was changed.", no_header=no_header)


@app.command()
def head(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Print number, hash and time of the newest record. Example: sluice audit head"""
    newest = call(find_server(data_dir), "GET", "/audit/head")
    if as_json:
        print_json(newest)
        return
    print(f"{newest['seq']}:{newest['hash']}\t{newest['at']}")
    note("Keep it elsewhere: 'sluice audit verify --head SEQ:HASH' proves what came before it.")


@app.command()
def verify(
    head: Annotated[
        str | None, typer.Option(help="A head from before, as SEQ:HASH, that must be in it.")
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Check the chain of hashes; exit code 1 where it is broken. Example: sluice audit verify"""
    params = None if head is None else {"head": head}
    access = find_server(data_dir)
    verdict = call(access, "GET", "/audit/verify", params=params, timeout_s=_WALK_S)
    if as_json:
        print_json(verdict)
    broken, lost, unkeyed = (verdict[f"{what}_seq"] for what in ("broken", "lost", "unkeyed"))
    if broken is not None:
        raise CliError(f"the audit log is broken at record {broken}")
    if lost is not None:
        raise CliError(
            f"record {lost} of the audit log is not what it was: the log was cut off or made anew"
        )
    if not as_json:
        print(f"{verdict['seq']}\t{verdict['hash']}")
    if unkeyed:
        note(f"Unkeyed up to record {unkeyed}: who changed those before the seal is not found.")
    note("The log is whole. Keep this head elsewhere: it proves later that nothing was cut off.")
