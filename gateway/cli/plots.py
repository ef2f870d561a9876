"""Draws a simulated run: service of its tenants, time to first token, the queue.

matplotlib is an extra: it is imported when something is drawn, and nothing else needs it.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from gateway.cli.exits import CliError, Exit
from scheduler.simulator.records import Run

_FORMATS = (".svg", ".png", ".pdf")


def check_plot(path: Path) -> None:
    """Complain before a long run if nothing could be drawn to `path` after it."""
    if find_spec("matplotlib") is None:
        raise CliError(f"--plot needs matplotlib: {sys.executable} -m pip install matplotlib")
    if path.suffix.lower() not in _FORMATS:
        raise CliError(f"--plot draws to {', '.join(_FORMATS)}, not to {path}", Exit.USAGE)
    if not path.parent.is_dir():
        raise CliError(f"no directory {path.parent}", Exit.NOT_FOUND)


def draw_run(run: Run, path: Path) -> None:
    """Draw three charts into one file; the same run gives the same bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from scheduler.simulator.series import queue_curve, service_curves, ttft_curve

    # Ids in an SVG are random unless they are salted.
    with rc_context({"svg.hashsalt": "sluice"}):
        figure = Figure(figsize=(9, 10), layout="constrained")
        service, ttft, queue = figure.subplots(3, 1)
        for curve in service_curves(run):
            service.plot(curve.x, curve.y, label=curve.label)
        service.set(xlabel="time, s", ylabel="weighted tokens/s", title="Service by tenant")
        service.legend(loc="upper right", fontsize="small", ncols=2)
        curve = ttft_curve(run)
        ttft.step(curve.x, curve.y, where="post")
        ttft.set(xlabel="time to first token, s", ylabel="share of requests", title="TTFT")
        ttft.set_ylim(0, 1)
        curve = queue_curve(run)
        queue.step(curve.x, curve.y, where="post")
        queue.set(xlabel="time, s", ylabel="requests", title="Waiting")
        for axes in (service, ttft, queue):
            axes.grid(alpha=0.3)
            axes.set_xlim(left=0)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
        figure.savefig(path, metadata=metadata)
