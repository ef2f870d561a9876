"""`sluice apply`: make plans, prices, limits, tenants and keys what a file says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.admin_client import AdminAccess, find_server
from gateway.cli.exits import CliError
from gateway.cli.options import AsJson, DataDir
from gateway.cli.output import note, print_json

if TYPE_CHECKING:
    from gateway.cli.changes import Change
    from gateway.cli.tenants_file import Desired


def apply(
    file: Annotated[Path, typer.Option("--file", "-f", help="The file, as tenants.toml.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show it, change nothing.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Make tenants, keys, plans, limits and prices what a file says; see examples/tenants.toml.

    What is not in the file is left alone, and named. Tokens of new keys are printed this once.
    Example: sluice apply -f tenants.toml --dry-run
    """
    from gateway.cli.tenants_file import read_file

    apply_desired(read_file(file), find_server(data_dir), dry_run=dry_run, as_json=as_json)


def apply_desired(desired: Desired, access: AdminAccess, *, dry_run: bool, as_json: bool) -> None:
    """Show the changes, and make them unless it is a dry run. Raises: `CliError`."""
    from gateway.cli.changes import SAME, Present, changes, left_alone

    present = Present(access)
    found = list(changes(desired, present))
    rest = left_alone(desired, present)
    to_do = [change for change in found if change.sign != SAME]
    if not as_json:
        for change in found:
            print(_line(change))
    keys: list[dict[str, Any]] = []
    num_done = 0
    try:
        for change in () if dry_run else to_do:
            answer = change.make(access)
            num_done += 1
            if "key" in answer:
                keys.append({name: answer[name] for name in ("tenant", "name", "kid", "key")})
                if not as_json:
                    print(f"{answer['tenant']}/{answer['name']}\t{answer['key']}")
    except CliError as exc:
        raise CliError(
            f"{num_done} of {len(to_do)} changes are made, the next failed; mend it and apply "
            f"again. {exc}",
            exc.code,
        ) from None
    finally:
        # Tokens are shown this once, whatever came after them.
        if as_json:
            print_json(
                {
                    "dry_run": dry_run,
                    "changes": [_plain(change) for change in found],
                    "num_to_do": len(to_do),
                    "num_done": num_done,
                    "keys": keys,
                    "not_in_file": rest,
                }
            )
    if rest:
        note(f"Not in the file, and left alone: {', '.join(rest)}.")
    if not to_do:
        note("Nothing to do.")
    elif dry_run:
        note(f"{len(to_do)} to do; nothing was changed.")
    else:
        note(f"{num_done} done." + (" The tokens are shown this once." if keys else ""))


def _line(change: Change) -> str:
    details = [
        f"{one.field} {_text(one.after)}"
        if change.sign == "+"
        else f"{one.field} {_text(one.before)} → {_text(one.after)}"
        for one in change.details
    ]
    return f"{change.sign} {change.subject}" + (f": {', '.join(details)}" if details else "")


def _plain(change: Change) -> dict[str, Any]:
    return {
        "sign": change.sign,
        "subject": change.subject,
        "details": {one.field: [one.before, one.after] for one in change.details},
    }


def _text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return "[" + " ".join(map(str, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.15g}" if isinstance(value, float) else str(value)
