"""`sluice simulate`: the production scheduler on a virtual clock, on this machine alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli import simulate_options as flags
from gateway.cli.exits import CliError, Exit
from gateway.cli.options import AsJson
from gateway.cli.output import note, print_json

if TYPE_CHECKING:
    from scheduler.simulator.records import Record
    from scheduler.simulator.replay import ReplayOptions
    from scheduler.simulator.tiers import Tier


def simulate(
    trace: flags.Trace = None,
    suite: flags.Suite = None,
    policy: flags.Policy = "vtc",
    load: flags.Load = None,
    seed: flags.Seed = 0,
    machine: flags.Machine = "a100-llama-3-8b",
    preset: flags.Preset = "mixed",
    tenants: flags.Tenants = None,
    ttft: flags.Ttft = None,
    tpot: flags.Tpot = None,
    max_gap: flags.MaxGap = None,
    max_tokens: flags.MaxTokens = None,
    limit: flags.Limit = None,
    plot: flags.Plot = None,
    out: flags.Out = None,
    as_json: AsJson = False,
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
    _check_files(trace, plot)
    from scheduler.request import Slo
    from scheduler.simulator.replay import ReplayOptions

    asked = ReplayOptions(trace=trace, policy=policy, preset=preset, load=load, seed=seed)
    asked = replace(asked, machine=machine, limit=limit, max_tokens=max_tokens)
    asked = replace(asked, tiers=_read_tiers(tenants), slo=Slo(ttft, tpot, max_gap))
    _replay(asked, plot, as_json=as_json)


def _check_files(trace: Path, plot: Path | None) -> None:
    """Refuse before anything is computed what could not be read or drawn."""
    if plot is not None:
        from gateway.cli.plots import check_plot

        check_plot(plot)
    if not trace.is_file():
        raise CliError(f"no file {trace}", Exit.NOT_FOUND)


def _read_tiers(tenants: Path | None) -> Sequence[Tier]:
    from scheduler.errors import SchedulerError
    from scheduler.simulator.tiers import read_tiers

    try:
        return () if tenants is None else read_tiers(tenants)
    except SchedulerError as exc:
        raise CliError(str(exc), Exit.USAGE) from exc


def _replay(asked: ReplayOptions, plot: Path | None, *, as_json: bool) -> None:
    """Replay a trace, draw it where that is asked for, and print its figures."""
    from scheduler.errors import SchedulerError
    from scheduler.progress import Progress
    from scheduler.simulator.replay import prepare
    from scheduler.simulator.report import render_run

    try:
        replay = prepare(asked)
    except SchedulerError as exc:
        raise CliError(str(exc), Exit.USAGE) from exc
    num_requests = len(replay.workload.arrivals)
    with Progress(num_requests, label=f"simulate {replay.workload.name}") as progress:
        num_told = 0

        def told(ended: Sequence[Record]) -> None:
            nonlocal num_told
            num_told += len(ended)
            amount = sum(record.arrival.num_tokens for record in ended)
            progress.advance(len(ended), amount=amount)

        run, figures = replay.run(told)
        # Nobody is told of those that were refused, or whose clients left.
        progress.advance(num_requests - num_told)
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
    note(f"suite {name}: {found.num_runs} runs, {_about(found.about_s)}")
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


def _about(seconds: float | None) -> str:
    """Say roughly how long a suite takes."""
    if seconds is None:
        return "and the time left is told after the first"
    rough = f"{seconds:.0f} s" if seconds < 90 else f"{round(seconds / 60)} min"
    return f"about {rough} on a core of its own"


def _verdict(met: bool | None) -> str:
    return "" if met is None else "met" if met else "missed"
