"""The one shape of every benchmark's result.

A report names the machine, the versions and the commit, keeps the raw samples, and states each
figure with its goal and whether it was met; a goal that was missed stays in the file.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from scheduler.figure import Figure, at_least, at_most

__all__ = [
    "BENCHMARKS_DIR",
    "Figure",
    "at_least",
    "at_most",
    "machine",
    "update_report",
    "write_report",
]

BENCHMARKS_DIR = Path(__file__).parent.parent.parent / "docs" / "benchmarks"

_PACKAGES = ("sluice", "torch", "triton", "numpy", "transformers", "openai", "uvicorn", "starlette")


def write_report(
    name: str, figures: Mapping[str, Figure], samples: Mapping[str, Any], *, directory: Path
) -> Path:
    """Write `<directory>/<name>.json` and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    document = {
        "name": name,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": machine(),
        "versions": _versions(),
        "figures": {key: asdict(figure) for key, figure in figures.items()},
        "samples": samples,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def update_report(
    name: str,
    part: str,
    figures: Mapping[str, Figure],
    samples: Mapping[str, Any],
    *,
    directory: Path,
    device: Mapping[str, Any] | None = None,
    commit: str | None = None,
) -> Path:
    """Put one part's figures into `<directory>/<name>.json`, beside those of the other parts.

    For benches whose parts run one at a time. `parts` says when and at which commit each was
    measured; the fields at the top are the newest part's. What another machine measured goes.
    `device` describes a device besides the machine; `commit` is for trees without their history.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    here = {**machine(), **(device or {})}
    before = json.loads(path.read_text()) if path.exists() else {}
    if before.get("machine") != here:
        before = {}
    replaced = set(before.get("parts", {}).get(part, {}).get("figures", ())) | set(figures)
    kept = {key: figure for key, figure in before.get("figures", {}).items() if key not in replaced}
    now = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit or _commit(),
    }
    document = {
        "name": name,
        **now,
        "machine": here,
        "versions": _versions(),
        "parts": {**before.get("parts", {}), part: {**now, "figures": list(figures)}},
        "figures": {**kept, **{key: asdict(figure) for key, figure in figures.items()}},
        "samples": {**before.get("samples", {}), part: samples},
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def machine() -> dict[str, Any]:
    """Describe what the figures were measured on."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """Name the commit, with a `+` where the tree has changes besides benchmark results."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        status = [*git, "status", "--porcelain", "--", ":/", ":!/docs/benchmarks"]
        changed = subprocess.run(status, capture_output=True, text=True)
    except OSError:
        return "unknown"
    if head.returncode != 0:
        return "unknown"
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
