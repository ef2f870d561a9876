"""`sluice requests`: what became of requests, and why one took as long as it did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gateway.cli.admin_client import call, call_all, find_server
from gateway.cli.options import AsJson, DataDir, NoHeader, segment
from gateway.cli.output import print_fields, print_json, print_table

app = typer.Typer(help="Finished requests, for a day, and what held them up.", no_args_is_help=True)

_COLUMNS = ("at", "id", "tenant", "status", "duration_s", "ttft_s", "output_tokens", "cause")


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    status: Annotated[int | None, typer.Option(help="Only those answered so, as 429.")] = None,
    cause: Annotated[
        str | None, typer.Option(help="Only what this held up, as queue or own_limit.")
    ] = None,
    missed: Annotated[
        bool | None, typer.Option("--missed/--kept", help="Only what missed a promise, or did not.")
    ] = None,
    from_: Annotated[str | None, typer.Option("--from", help="From this time on.")] = None,
    to: Annotated[str | None, typer.Option(help="Up to this time, as 2026-11-30T08:00Z.")] = None,
    last: Annotated[int, typer.Option(min=1, max=100, help="So many at most.")] = 20,
    every: Annotated[bool, typer.Option("--all", help="All that are kept.")] = False,
    no_header: NoHeader = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List finished requests, the newest first. Example: sluice requests list --cause queue"""
    given = {
        "tenant": tenant,
        "status": None if status is None else str(status),
        "cause": cause,
        "missed": None if missed is None else str(missed).lower(),
        "from": from_,
        "to": to,
    }
    params = {name: value for name, value in given.items() if value is not None}
    access = find_server(data_dir)
    if every:
        rows = call_all(access, "/requests", params=params)
    else:
        rows = call(access, "GET", "/requests", params={**params, "limit": str(last)})["data"]
    if as_json:
        print_json(rows)
        return
    print_table(rows, _COLUMNS, none="No request is kept that is like that.", no_header=no_header)


@app.command()
def show(
    id_: Annotated[str, typer.Argument(metavar="ID", help="As x-request-id has it, req_….")],
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Say what happened to one request, and why. Example: sluice requests show req_68a0"""
    found = call(find_server(data_dir), "GET", f"/requests/{segment(id_)}")
    if as_json:
        print_json(found)
        return
    details: dict[str, Any] = found.pop("details")
    print(details.pop("sentence"))
    for share in details.pop("contributions"):
        print(f"{share['seconds']:10.3f} s  {share['cause']}")
    moments = sorted(_moments(details), key=lambda one: one[0])
    for at_s, text in moments:
        print(f"{at_s:10.3f}    {text}")
    print_fields(found | {name: one for name, one in details.items() if not isinstance(one, list)})


def _moments(details: dict[str, Any]) -> list[tuple[float, str]]:
    """Return what happened when: phases, remarks, and what the scheduler tells."""
    moments = [
        (one["begin_s"], f"{one['name']} {one['end_s'] - one['begin_s']:.3f} s{_said(one)}")
        for one in details.pop("phases")
    ]
    moments += [(one["at_s"], f"{one['name']}{_said(one)}") for one in details.pop("remarks")]
    for one in details.pop("generations"):
        waits = ", ".join(f"{name} {took_s:.3f} s" for name, took_s in one["waits_s"].items())
        rests = ", ".join(f"{name} {took_s:.3f} s" for name, took_s in one["rests_s"].items())
        moments.append((one["queued_s"], f"queued behind {one['num_ahead']}"))
        for name, text in (
            ("admitted_s", f"admitted{f' after {waits}' if waits else ''}"),
            ("first_token_s", f"first token after {one['num_chunks']} chunks"),
            ("ended_s", f"{one['num_output_tokens']} tokens{f', rested {rests}' if rests else ''}"),
        ):
            if one[name] is not None:
                moments.append((one[name], text))
        for sent_back in one["preemptions"]:
            moments.append((sent_back["at_s"], f"preempted: {sent_back['cause']}"))
            if sent_back["resumed_s"] is not None:
                moments.append((sent_back["resumed_s"], "resumed"))
    return moments


def _said(one: Mapping[str, Any]) -> str:
    return "".join(f" {name}={value}" for name, value in one["detail"].items())
