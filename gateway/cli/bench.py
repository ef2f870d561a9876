"""`sluice bench`: measure this machine; the benches below the gateway bring their options."""

from __future__ import annotations

import sys

import typer

app = typer.Typer(help="Measure Sluice on this machine.", no_args_is_help=True)


# A bench reads its own options, --help too: it also runs where no gateway is installed.
_OWN_OPTIONS = {"ignore_unknown_options": True, "allow_extra_args": True}


@app.command(context_settings=_OWN_OPTIONS, add_help_option=False)
def engine(context: typer.Context) -> None:
    """Measure the engine: tokens/s, its share of the machine's ceilings, transformers beside it.

    Example: sluice bench engine --shape llama-30m --dtype bfloat16 --batch 1,8,32
    """
    from scheduler.bench.__main__ import main

    sys.exit(main(context.args, prog="sluice bench engine"))


@app.command(context_settings=_OWN_OPTIONS, add_help_option=False)
def scheduler(context: typer.Context) -> None:
    """Measure the scheduler: CPU time of a step at a queue of 10,000, and how it grows.

    Example: sluice bench scheduler --json
    """
    from scheduler.bench.scheduler_bench import main

    sys.exit(main(context.args))


@app.command(context_settings=_OWN_OPTIONS, add_help_option=False)
def batching(context: typer.Context) -> None:
    """Measure what continuous batching and chunked prefill buy, beside batches run to their end.

    Example: sluice bench batching --shape llama-30m
    """
    from scheduler.bench.batching_bench import main

    sys.exit(main(context.args))


@app.command(context_settings=_OWN_OPTIONS, add_help_option=False)
def gateway(context: typer.Context) -> None:
    """Measure the gateway: CPU of a request and of a streamed event, beside a bare echo.

    Example: sluice bench gateway --rounds 3
    """
    from gateway.bench.gateway_bench import main

    sys.exit(main(context.args))
