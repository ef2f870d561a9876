"""What the benches of one part have in common: their output options, and the end of their work."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from scheduler.bench.part import Part, print_part
from scheduler.bench.report import BENCHMARKS_DIR, update_report


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Let the caller say how the figures are printed and where the report goes."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where the report goes; default: docs/benchmarks"
    )


def positive(text: str) -> int:
    """Read a number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def finish_part(
    report: str, title: str, part: Part, *, directory: Path | None, as_json: bool
) -> int:
    """Print a part and put it into its report, where there is a place for it; returns 0."""
    directory = directory or (BENCHMARKS_DIR if BENCHMARKS_DIR.is_dir() else None)
    if directory is not None:
        update_report(report, title, part.figures, part.samples, directory=directory)
        sys.stderr.write(f"figures are in {directory}\n")
    if as_json:
        figures = {key: asdict(figure) for key, figure in part.figures.items()}
        document = {"figures": figures, "samples": {title: part.samples}}
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        print_part(title, part)
    return 0
