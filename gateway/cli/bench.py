"""`sluice bench`: measure this machine; the benches below the gateway bring their options."""

from __future__ import annotations

import sys

import typer

app = typer.Typer(help="Measure Sluice on this machine.", no_args_is_help=True)


@app.command(
    # The bench reads its own options, --help too: it also runs where no gateway is installed.
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    add_help_option=False,
)
def engine(context: typer.Context) -> None:
    """Measure the engine: tokens/s, its share of the machine's ceilings, transformers beside it.

    Example: sluice bench engine --shape llama-30m --dtype bfloat16 --batch 1,8,32
    """
    from scheduler.bench.__main__ import main

    sys.exit(main(context.args, prog="sluice bench engine"))
