"""`sluice db`: the database apart from any server: its schema, and backups of the embedded one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer

from gateway.cli import db_backup
from gateway.cli.chosen_settings import read_settings
from gateway.cli.exits import CliError, Exit
from gateway.cli.options import AsJson
from gateway.cli.output import note, print_json

if TYPE_CHECKING:
    from gateway.settings import Settings
    from gateway.store.migrate import Schema

app = typer.Typer(
    help="The schema of SLUICE_DATABASE_URL, and backups of the embedded server.",
    no_args_is_help=True,
)
app.command()(db_backup.backup)
app.command()(db_backup.restore)


@app.command()
def upgrade(as_json: AsJson = False) -> None:
    """Bring the schema to this release's, and let the login of SLUICE_DATABASE_URL in.

    It is done as the owner, SLUICE_DATABASE_OWNER_URL; servers started after it need no such URL.
    A newer release's schema that serves this one too is left as it is.

    Example: sluice db upgrade
    """
    from gateway.store.migrate import HEAD
    from gateway.store.schema_upgrade import upgrade_schema

    before = _of_database(upgrade_schema)
    revision = before.revision if before.is_newer else HEAD
    if as_json:
        print_json({"revision": revision, "was": before.revision})
        return
    print(revision)
    if before.is_newer:
        note(f"It is a newer release's, and serves this one, of {HEAD}, as it is.")
    else:
        was = "empty" if before.revision is None else before.revision
        note("It was there already." if before.is_current else f"It was {was}.")


@app.command()
def current(as_json: AsJson = False) -> None:
    """Print the schema's revision; exit code 1 where it does not serve this release.

    Example: sluice db current
    """
    from gateway.store.migrate import HEAD
    from gateway.store.schema_upgrade import schema_state

    schema = _of_database(schema_state)
    if as_json:
        said = {"revision": schema.revision, "readable_from": schema.readable_from, "head": HEAD}
        print_json(said | {"is_current": schema.is_current, "serves": schema.serves})
    else:
        if schema.revision is not None:
            print(schema.revision)
        if schema.is_newer:
            rest = "serves this one too" if schema.serves else "does not serve this one any more"
            note(f"It is a newer release's, and {rest} ({HEAD}).")
        elif not schema.is_current:
            note(f"This release needs {HEAD}: sluice db upgrade brings it there.")
    if not schema.serves:
        sys.exit(Exit.FAILED)


def _of_database(run: Callable[[Settings], Awaitable[Schema]]) -> Schema:
    """Run what the settings' database is asked. Raises: `CliError`."""
    from gateway.errors import GatewayError, StartupFailed

    settings = read_settings({})
    if settings is None:
        sys.exit(Exit.USAGE)

    async def asked() -> Schema:
        return await run(settings)

    try:
        return asyncio.run(asked())
    except (GatewayError, StartupFailed) as exc:
        raise CliError(str(exc)) from None
