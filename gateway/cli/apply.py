"""`sluice apply`: make plans, prices, limits, tenants and keys what a file says, all or nothing.

The server compares and changes: the whole of the file is one request. On a terminal the plan is
shown first and its fingerprint sent with the answer, so that what was agreed to is what is done.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.admin_client import AdminAccess, call, find_server
from gateway.cli.exits import CliError, Exit, NoAnswer
from gateway.cli.limits import FIELDS, label, readable
from gateway.cli.options import AsJson, DataDir
from gateway.cli.output import note, print_json

if TYPE_CHECKING:
    from gateway.cli.tenants_file import Desired


def apply(
    file: Annotated[Path, typer.Option("--file", "-f", help="The file, as tenants.toml.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "--plan", help="Show the plan, change nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask; nobody is asked without a terminal.")
    ] = False,
    if_plan: Annotated[
        str | None,
        typer.Option(metavar="FINGERPRINT", help="Do what that plan says; otherwise a conflict."),
    ] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Make tenants, keys, plans, limits and prices what a file says; see examples/tenants.toml.

    All of it is done, or nothing. What is not in the file is left alone, and named. Tokens of new
    keys are printed this once. Example: sluice apply -f tenants.toml --dry-run
    """
    from gateway.cli.tenants_file import read_file

    apply_desired(
        read_file(file),
        find_server(data_dir),
        dry_run=dry_run,
        yes=yes,
        if_plan=if_plan,
        as_json=as_json,
    )


def apply_desired(
    desired: Desired,
    access: AdminAccess,
    *,
    dry_run: bool,
    yes: bool,
    if_plan: str | None = None,
    as_json: bool,
) -> None:
    """Show the plan, and have it done unless it is a dry run. Raises: `CliError`."""
    body = desired.body()
    if dry_run:
        plan = call(access, "POST", "/apply/plan", body=body)
        _check(plan, if_plan)
        _show(plan, [], dry_run=True, as_json=as_json)
        return
    is_shown = False
    if not (yes or as_json or if_plan) and sys.stdin.isatty():
        plan = call(access, "POST", "/apply/plan", body=body)
        _print_changes(plan)
        is_shown, if_plan = True, plan["fingerprint"]
        if plan["num_to_do"] and not typer.confirm(f"Make these {plan['num_to_do']} changes?"):
            note("Nothing was changed.")
            return
    try:
        done = call(access, "POST", "/apply", body={**body, "fingerprint": if_plan})
    except NoAnswer as exc:
        raise CliError(
            f"{exc}\nAll of it is done, or nothing: 'sluice apply --dry-run' tells. A new key that "
            "it made has a token that nobody has seen; rotate it."
        ) from None
    except CliError as exc:
        if (current := exc.answer.get("current")) is not None:
            _print_changes(current)
            note(f"Plan {current['fingerprint']}.")
        raise
    _show(done["plan"], done["keys"], dry_run=False, as_json=as_json, is_shown=is_shown)


def _check(plan: Mapping[str, Any], wanted: str | None) -> None:
    if wanted not in (None, plan["fingerprint"]):
        _print_changes(plan)
        raise CliError("It was changed since that plan was made.", Exit.CONFLICT)


def _show(
    plan: Mapping[str, Any],
    keys: list[dict[str, Any]],
    *,
    dry_run: bool,
    as_json: bool,
    is_shown: bool = False,
) -> None:
    to_do, rest = plan["num_to_do"], plan["not_named"]
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "plan": plan["fingerprint"],
                "changes": [_plain(change) for change in plan["changes"]],
                "num_to_do": to_do,
                "num_done": 0 if dry_run else to_do,
                "keys": keys,
                "not_in_file": rest,
            }
        )
    else:
        if not is_shown:
            _print_changes(plan)
        for key in keys:
            print(f"{key['tenant']}/{key['name']}\t{key['key']}")
    if rest:
        note(f"Not in the file, and left alone: {', '.join(rest)}.")
    if not to_do:
        note("Nothing to do.")
    elif dry_run:
        note(f"{to_do} to do; nothing was changed. Plan {plan['fingerprint']}.")
    else:
        note(f"{to_do} done." + (" The tokens are shown this once." if keys else ""))


def _print_changes(plan: Mapping[str, Any]) -> None:
    for change in plan["changes"]:
        print(_line(change))


def _line(change: Mapping[str, Any]) -> str:
    details = [
        f"{field} {_text(after)}"
        if change["sign"] == "+"
        else f"{field} {_text(before)} → {_text(after)}"
        for field, (before, after) in _readable(change).items()
    ]
    return f"{change['sign']} {change['subject']}" + (f": {', '.join(details)}" if details else "")


def _plain(change: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "sign": change["sign"],
        "subject": change["subject"],
        "details": {field: list(both) for field, both in _readable(change).items()},
    }


def _readable(change: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what was and is to be, limits as people read them."""
    return {
        label(field): (readable(field, before), readable(field, after))
        if field in FIELDS
        else (before, after)
        for field, before, after in change["details"]
    }


def _text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return "[" + " ".join(map(str, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.15g}" if isinstance(value, float) else str(value)
