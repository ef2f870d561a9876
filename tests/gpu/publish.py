"""Where the parts of a stage go as they are measured: a person, the report, and who began it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from scheduler.bench.part import Part, print_part
from scheduler.bench.report import BENCHMARKS_DIR, Figure, update_report
from scheduler.bench.setup import describe_device
from tests.gpu.asked import Asked

# What is wrong without graphs is wrong; how fast it is without them is no goal of anyone's.
_TRUE_WITHOUT_GRAPHS = ("kernels", "correctness", "soak")


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """Publish what a stage yields, each time that it grows.

    `results` is a file that gets a JSON object a line, for whoever began the stage; `commit` is for
    trees without their history.
    """

    asked: Asked
    directory: Path | None
    commit: str | None = None
    results: Path | None = None

    def publish(self, title: str, part: Part) -> bool:
        """Write a part, and print it once it is complete; tells whether no goal is missed."""
        if self.asked.eager:
            title, part = _as_eager(title, part)
        if part.complete:
            print_part(title, part)
            for key, figure in part.figures.items():
                if figure.goal is None:
                    sys.stdout.write(f"  {key}: {figure.value:.4g} {figure.unit}\n")
            sys.stdout.flush()
        if self.directory is not None:
            self._report(self.directory, title, part)
        if self.results is not None:
            self._tell(self.results, title, part)
        return all(figure.met is not False for figure in part.figures.values())

    def _report(self, directory: Path, title: str, part: Part) -> None:
        name, described = _describe_device(self.asked.device)
        name = name if self.asked.on_gpu else "gpu-cpu"
        path, known = directory / f"{name}.json", BENCHMARKS_DIR / f"{name}.json"
        if known.exists() and not path.exists():
            # Figures go on from those that are kept: what was written elsewhere can replace them.
            directory.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(known, path)
        update_report(
            name,
            title,
            part.figures,
            part.samples,
            directory=directory,
            device=described,
            commit=self.commit,
            complete=part.complete,
        )

    def _tell(self, results: Path, title: str, part: Part) -> None:
        figures = {key: asdict(figure) for key, figure in part.figures.items()}
        line = json.dumps({"title": title, "complete": part.complete, "figures": figures})
        with results.open("a") as file:
            file.write(f"{line}\n")


@cache
def _describe_device(device: str) -> tuple[str, Mapping[str, Any]]:
    """Ask a device once: when it has failed it may not answer."""
    return describe_device(device)


def read_results(path: Path) -> list[dict[str, Any]]:
    """Read what a stage has told, the last state of each title; no line that was cut off."""
    by_title: dict[str, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            state = json.loads(line)
        except ValueError:
            continue
        by_title[state["title"]] = state
    return list(by_title.values())


def _as_eager(title: str, part: Part) -> tuple[str, Part]:
    """Name a part apart from what captured graphs do, and take the goals of speed from it."""
    figures = part.figures
    if title.split()[0] not in _TRUE_WITHOUT_GRAPHS:
        figures = {key: Figure(figure.value, figure.unit) for key, figure in figures.items()}
    named = {f"{key}_eager": figure for key, figure in figures.items()}
    return f"{title} eager", replace(part, figures=named)
