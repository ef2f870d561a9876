"""`sluice db`: the database, apart from any server."""

from __future__ import annotations

import typer

from gateway.cli import db_backup

app = typer.Typer(help="The database: backups.", no_args_is_help=True)
app.command()(db_backup.backup)
app.command()(db_backup.restore)
