"""`sluice quotas`: the limits of a key, a tenant, a plan, the organisation or the platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from gateway.cli.admin_client import call, find_server
from gateway.cli.limits import FIELDS, Unset, label, readable, with_limits
from gateway.cli.options import AsJson, DataDir, IfVersion, NoHeader, duration_s, segment
from gateway.cli.output import note, print_json, print_table
from gateway.cli.plans import changed_limits

app = typer.Typer(help="Limits: shown, set, and laid over for a while.", no_args_is_help=True)

Tenant = Annotated[str | None, typer.Option(help="The limits of this tenant.")]
Key = Annotated[str | None, typer.Option(help="The limits of this key, by id or kid.")]
Plan = Annotated[str | None, typer.Option(help="The limits of this plan.")]
Organisation = Annotated[
    bool, typer.Option("--organisation", help="The limits of all tenants together.")
]
Platform = Annotated[bool, typer.Option("--platform", help="The limits of this installation.")]

# There is one organisation and one platform: their name in a path.
_THE_ONE: Final = "-"


@dataclass(frozen=True, slots=True)
class _Scope:
    path: str
    text: str


@app.command()
def get(
    tenant: Tenant = None,
    key: Key = None,
    plan: Plan = None,
    organisation: Organisation = False,
    platform: Platform = False,
    no_header: NoHeader = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Show what is set, what lies over it, and what holds.

    Example: sluice quotas get --tenant acme
    """
    scope = _scope(tenant, key, plan, organisation, platform)
    _print(call(find_server(data_dir), "GET", scope.path), as_json, no_header)


@app.command("set")
@with_limits
def set_(
    limits: dict[str, Any],
    tenant: Tenant = None,
    key: Key = None,
    plan: Plan = None,
    organisation: Organisation = False,
    platform: Platform = False,
    unset: Unset = None,
    if_version: IfVersion = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Set the limits that are named; the others stay.

    Example: sluice quotas set --tenant acme --rpm 600 --budget-usd 25 --unset concurrency
    """
    scope = _scope(tenant, key, plan, organisation, platform)
    body = changed_limits(limits, unset)
    access = find_server(data_dir)
    _print(call(access, "PATCH", scope.path, body=body, version=if_version), as_json)
    note(f"Set; the next request of {scope.text} has it.")


@app.command()
@with_limits
def override(
    limits: dict[str, Any],
    tenant: Tenant = None,
    key: Key = None,
    organisation: Organisation = False,
    platform: Platform = False,
    for_: Annotated[str | None, typer.Option("--for", help="How long, as 30m, 2h or 7d.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why; it goes into the audit log.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take the override away.")] = False,
    if_version: IfVersion = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Lay limits over those that are set, for a while.

    Example: sluice quotas override --tenant acme --rpm 6000 --for 2h --reason "launch day"
    """
    scope = _scope(tenant, key, None, organisation, platform)
    path = f"{scope.path}/override"
    if clear:
        if limits or for_ is not None or reason is not None:
            raise typer.BadParameter("--clear takes no limits, --for or --reason")
        state = call(find_server(data_dir), "DELETE", path, version=if_version)
        _print(state, as_json)
        note(f"Taken away; the next request of {scope.text} has its own limits.")
        return
    if not limits or for_ is None or reason is None:
        raise typer.BadParameter("name a limit, --for how long, and a --reason; or --clear")
    body = {**limits, "ends_in_s": duration_s(for_, "--for"), "reason": reason}
    state = call(find_server(data_dir), "PUT", path, body=body, version=if_version)
    _print(state, as_json)


@app.command()
def usage(
    tenant: Tenant = None,
    key: Key = None,
    organisation: Organisation = False,
    platform: Platform = False,
    no_header: NoHeader = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Show how far each limit is used now. Example: sluice quotas usage --tenant acme"""
    scope = _scope(tenant, key, None, organisation, platform)
    found = call(find_server(data_dir), "GET", f"{scope.path}/usage")
    if as_json:
        print_json(found)
        return
    amounts = ("limit", "used", "held", "remaining")
    rows = [
        {
            "metric": label(one["metric"]),
            **{name: readable(one["metric"], one.get(name)) for name in amounts},
            "resets_at": one.get("resets_at"),
        }
        for one in found["limits"]
    ]
    columns = ("metric", *amounts, "resets_at")
    print_table(rows, columns, none=f"Nothing limits {scope.text}.", no_header=no_header)


def _scope(
    tenant: str | None,
    key: str | None,
    plan: str | None,
    organisation: bool,
    platform: bool,
) -> _Scope:
    """Return the one scope that was named. Raises: `typer.BadParameter`."""
    named = {
        "tenant": tenant,
        "key": key,
        "plan": plan,
        "organisation": _THE_ONE if organisation else None,
        "platform": _THE_ONE if platform else None,
    }
    given = [(kind, name) for kind, name in named.items() if name is not None]
    if len(given) != 1:
        raise typer.BadParameter(
            "name one of --tenant T, --key ID, --plan P, --organisation and --platform"
        )
    [(kind, name)] = given
    text = f"the {kind}" if name == _THE_ONE else f"{kind} {name}"
    return _Scope(f"/quotas/{kind}/{segment(name)}", text)


def _print(state: Mapping[str, Any], as_json: bool, no_header: bool = False) -> None:
    if as_json:
        print_json(state)
        return
    override: Mapping[str, Any] = state["override"] or {}
    rows = [
        {
            "limit": label(field),
            "set": readable(field, state["quota"][field]),
            "override": readable(field, override.get(field)),
            "effective": readable(field, state["effective"][field]),
        }
        for field in FIELDS
    ]
    print_table(rows, ("limit", "set", "override", "effective"), none="", no_header=no_header)
    if override:
        reason = f": {override['reason']}" if override["reason"] else ""
        note(f"The override ends at {override['ends_at']}{reason}.")
