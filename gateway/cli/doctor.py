"""`sluice doctor`: say what is well, what is not, and what mends it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.chosen_settings import read_settings
from gateway.cli.exits import Exit
from gateway.cli.output import print_json

if TYPE_CHECKING:
    from gateway.doctor.finding import Finding

_MARKS = {"ok": "✓", "warning": "!", "broken": "✗"}


def doctor(
    data_dir: Annotated[Path | None, typer.Option(help="The data directory to look at.")] = None,
    model: Annotated[Path | None, typer.Option(help="The model directory to look at.")] = None,
    port: Annotated[int | None, typer.Option(help="The port that a server is to have.")] = None,
    audit: Annotated[
        bool,
        typer.Option(help="Audit the running server: try to time another tenant's prompts."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check machine, data directory, stores and model; exit code 1 if something is broken.

    Example: sluice doctor --model ./Qwen3-0.6B
    """
    settings = read_settings({"data_dir": data_dir, "model": model, "port": port})
    if settings is None:
        sys.exit(Exit.USAGE)
    from gateway.doctor.examine import audited, examine

    findings: list[Finding] = []
    for finding in audited(settings) if audit else examine(settings):
        findings.append(finding)
        if not as_json:
            _print(finding)
    is_well = all(finding.level != "broken" for finding in findings)
    if as_json:
        print_json({"ok": is_well, "findings": [asdict(finding) for finding in findings]})
    sys.exit(Exit.OK if is_well else Exit.FAILED)


def _print(finding: Finding) -> None:
    print(f"{_MARKS[finding.level]} {finding.name:<15} {finding.found}", flush=True)
    if finding.mend is not None:
        print(f"  {'':<15} → {finding.mend}", flush=True)
