"""`sluice import`: take over what another gateway has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.apply import apply_desired
from gateway.cli.exits import CliError
from gateway.cli.options import AsJson, DataDir
from gateway.cli.output import note, print_json

app = typer.Typer(help="Take over what another gateway has.", no_args_is_help=True)


@app.callback()
def _only_named() -> None:
    # With a callback Typer keeps the name of a single command.
    pass


@app.command()
def litellm(
    files: Annotated[
        list[Path],
        typer.Argument(help="config.yaml, and JSON of /team/list and /key/list, or an export."),
    ],
    out: Annotated[Path | None, typer.Option(help="Write the TOML here, not on stdout.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Apply it to a running server.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --apply: show it, change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --apply: do not ask.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Turn LiteLLM's teams, keys, budgets and limits into a tenants.toml.

    What could not be taken over is listed on stderr, by name with the reason. Keys get new
    secrets. Example: sluice import litellm config.yaml keys.json --out tenants.toml
    """
    if (out is not None and apply) or (dry_run and not apply):
        raise typer.BadParameter("name --out or --apply; --dry-run goes with --apply")
    from gateway.cli.admin_client import find_server
    from gateway.cli.litellm import import_litellm
    from gateway.cli.litellm_files import read_litellm
    from gateway.cli.tenants_file import read_document
    from gateway.cli.toml_text import toml_text

    imported = import_litellm(read_litellm(files))
    desired = read_document(imported.document)
    for place, how in imported.approximated:
        note(f"~ {place}: {how}.")
    for place, reason in imported.unmapped:
        note(f"! {place}: {reason}.")
    note(f"{len(imported.approximated)} nearly (~), {len(imported.unmapped)} not taken over (!).")
    text = toml_text(imported.document)
    if apply:
        apply_desired(desired, find_server(data_dir), dry_run=dry_run, yes=yes, as_json=as_json)
        return
    if out is not None:
        _write(out, text)
        note(f"Written. Look at it, then: sluice apply -f {out} --dry-run")
    if as_json:
        print_json(
            {
                "toml": text,
                "approximated": [list(one) for one in imported.approximated],
                "unmapped": [list(one) for one in imported.unmapped],
            }
        )
    elif out is None:
        print(text, end="")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as exc:
        raise CliError(f"{path} cannot be written: {exc}") from None
