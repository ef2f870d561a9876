"""The commands of `sluice`.

Nothing heavy is imported before a command runs, torch only by commands that run a model.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 not allowed, 5 conflict, 130
interrupted.
"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli import (
    admin,
    audit,
    batch,
    bench,
    config,
    db,
    import_,
    keys,
    orgs,
    plans,
    prices,
    quotas,
    requests,
    scheduler,
    tenants,
    tokens,
)
from gateway.cli.apply import apply
from gateway.cli.doctor import doctor
from gateway.cli.plain_words import PlainGroup
from gateway.cli.serve import serve
from gateway.cli.setting_flags import SettingsCommand
from gateway.cli.simulate import simulate
from gateway.cli.top import top
from gateway.cli.usage import usage
from gateway.cli.worker import WorkerCommand, worker

app = typer.Typer(
    name="sluice",
    cls=PlainGroup,
    help="A multi-tenant LLM API gateway with its own engine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(cls=SettingsCommand)(serve)
app.command(cls=WorkerCommand)(worker)
app.command()(doctor)
app.command()(simulate)
app.add_typer(tenants.app, name="tenants")
app.add_typer(orgs.app, name="orgs")
app.add_typer(keys.app, name="keys")
app.add_typer(batch.app, name="batch")
app.add_typer(plans.app, name="plans")
app.add_typer(quotas.app, name="quotas")
app.add_typer(prices.app, name="prices")
app.command()(usage)
app.command()(top)
app.add_typer(requests.app, name="requests")
app.command()(apply)
app.add_typer(import_.app, name="import")
app.add_typer(tokens.app, name="tokens")
app.add_typer(admin.app, name="admin")
app.add_typer(audit.app, name="audit")
app.add_typer(config.app, name="config")
app.add_typer(db.app, name="db")
app.add_typer(scheduler.app, name="scheduler")
app.add_typer(bench.app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        from gateway import DISTRIBUTION

        print(f"sluice {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    pass
