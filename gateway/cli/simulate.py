"""`sluice simulate`: the production scheduler on a virtual clock, on this machine alone."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.exits import CliError, Exit
from gateway.cli.output import note, print_json


def simulate(
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Replay it; the format is recognised.")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run a suite of workloads with goals.")
    ] = None,
    policy: Annotated[
        str, typer.Option(metavar="P", help="A policy, or tenant/key/request, as vtc/vtc/edf.")
    ] = "vtc",
    load: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=0.001,
            help="Offered tokens as a multiple of what the engine can do with this trace, "
            "measured by a saturated run. Default: the trace's own times.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="For what is drawn.")] = 0,
    engine_profile: Annotated[
        str, typer.Option(metavar="NAME", help="The engine that is simulated.")
    ] = "a100-llama-3-8b",
    preset: Annotated[str, typer.Option(metavar="NAME", help="The scheduler's numbers.")] = "mixed",
    tenants: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Weights, bands and promises by client."),
    ] = None,
    ttft: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Promise a first token by then.")
    ] = None,
    tpot: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Promise a pace of tokens.")
    ] = None,
    max_gap: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Promise no longer gap.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="What requests ask for, where their length is to be predicted."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Take the first N requests.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Draw service, TTFT and the queue: .svg, .png or .pdf."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a suite's report there as well.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Replay a trace, or run a suite, through the scheduler that serves.

    Example: sluice simulate --trace examples/traces/servegen_m-large_excerpt.csv --load 1.2
    """
    if (trace is None) == (suite is None):
        raise CliError("give either --trace FILE or --suite NAME", Exit.USAGE)
    if suite is not None:
        _run_suite(suite, out, as_json=as_json)
        return
    assert trace is not None
    if plot is not None:
        from gateway.cli.plots import check_plot

        check_plot(plot)
    from scheduler.errors import SchedulerError
    from scheduler.progress import Progress
    from scheduler.request import Slo
    from scheduler.simulator.replay import ReplayOptions, prepare
    from scheduler.simulator.report import render_run
    from scheduler.simulator.tiers import read_tiers

    if not trace.is_file():
        raise CliError(f"no file {trace}", Exit.NOT_FOUND)
    try:
        replay = prepare(
            ReplayOptions(
                trace=trace,
                policy=policy,
                preset=preset,
                engine_profile=engine_profile,
                load=load,
                seed=seed,
                limit=limit,
                tiers=read_tiers(tenants) if tenants is not None else (),
                slo=Slo(ttft, tpot, max_gap),
                max_tokens=max_tokens,
            )
        )
    except SchedulerError as exc:
        raise CliError(str(exc), Exit.USAGE) from exc
    num_requests = len(replay.workload.arrivals)
    with Progress(num_requests, label=f"simulate {replay.workload.name}") as progress:
        run, figures = replay.run(
            lambda ended: progress.advance(
                len(ended), amount=sum(record.arrival.num_tokens for record in ended)
            )
        )
    if plot is not None:
        from gateway.cli.plots import draw_run

        draw_run(run, plot)
    if as_json:
        print_json(figures)
    else:
        print(render_run(figures))


def _run_suite(name: str, out: Path | None, *, as_json: bool) -> None:
    """Run a suite; a goal that is missed makes the command fail."""
    from scheduler.bench.report import write_report
    from scheduler.errors import SchedulerError
    from scheduler.progress import Progress
    from scheduler.simulator.report import table
    from scheduler.simulator.suites import suites

    found = suites().get(name)
    if found is None:
        raise CliError(f"no suite {name!r}: choose one of {', '.join(suites())}", Exit.USAGE)
    with Progress(found.num_runs, label=f"suite {name}", unit="runs") as progress:
        try:
            result = found.run(lambda _: progress.advance(1, amount=1))
        except SchedulerError as exc:
            raise CliError(str(exc)) from exc
    if out is not None:
        path = write_report(found.report, result.figures, result.samples, directory=out)
        note(f"figures are in {path}")
    if as_json:
        figures = {key: asdict(figure) for key, figure in result.figures.items()}
        print_json({"suite": name, "figures": figures, "samples": result.samples})
    else:
        print(table(result.header, result.rows))
        print()
        rows = [
            (key, f"{figure.value:.4g}", figure.unit, figure.goal or "", _verdict(figure.met))
            for key, figure in result.figures.items()
        ]
        print(table(("figure", "value", "unit", "goal", ""), rows))
    if not all(figure.met in (None, True) for figure in result.figures.values()):
        sys.exit(Exit.FAILED)


def _verdict(met: bool | None) -> str:
    return "" if met is None else "met" if met else "missed"
