"""`sluice config`: what a running server was set to."""

from __future__ import annotations

import typer

from gateway.cli.admin_client import call, find_server
from gateway.cli.options import AsJson, DataDir
from gateway.cli.output import print_fields, print_json

app = typer.Typer(help="The settings of a running server.", no_args_is_help=True)


@app.command()
def show(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Show the settings in force; secrets are covered. Example: sluice config show --json"""
    found = call(find_server(data_dir), "GET", "/config")
    if as_json:
        print_json(found)
        return
    print_fields(found)
