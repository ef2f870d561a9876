"""The one shape of every benchmark's result.

A report names the machine, the versions and the commit, keeps the raw samples, and states each
figure with its goal and whether it was met; a goal that was missed stays in the file. A process
that is killed while it writes leaves the report as it was before.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
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

# What a figure cannot be compared across.
_MODELS = ("cpu", "gpu")
_PACKAGES = ("sluice", "torch", "triton", "numpy", "transformers", "openai", "uvicorn", "starlette")


def write_report(
    name: str, figures: Mapping[str, Figure], samples: Mapping[str, Any], *, directory: Path
) -> Path:
    """Write `<directory>/<name>.json` and return its path."""
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
    _replace(path, document)
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
    complete: bool = True,
) -> Path:
    """Put one part's figures into `<directory>/<name>.json`, beside those of the other parts.

    Parts may be measured side by side. `parts` says of each when, at which commit, on which
    machine and with which versions it was measured, and whether it was `complete`: one that was
    cut short has the figures it had until then. The fields at the top are the newest part's. What
    another processor or GPU measured goes; other memory, cores or versions do not part figures.
    `device` describes a device besides the machine; `commit` is for trees without their history.
    """
    path = directory / f"{name}.json"
    here = {**machine(), **(device or {})}
    with _alone_in(directory):
        return _update(path, here, part, figures, samples, commit=commit, complete=complete)


def _update(
    path: Path,
    here: Mapping[str, Any],
    part: str,
    figures: Mapping[str, Figure],
    samples: Mapping[str, Any],
    *,
    commit: str | None,
    complete: bool,
) -> Path:
    before = _read_parts(path, here)
    replaced = set(before["parts"].get(part, {}).get("figures", ())) | set(figures)
    kept = {key: figure for key, figure in before["figures"].items() if key not in replaced}
    now = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit or _commit(),
        "machine": here,
        "versions": _versions(),
    }
    entry = {**now, "complete": complete, "figures": list(figures)}
    document = {
        "name": path.stem,
        **now,
        "parts": {**before["parts"], part: entry},
        "figures": {**kept, **{key: asdict(figure) for key, figure in figures.items()}},
        "samples": {**before["samples"], part: samples},
    }
    _replace(path, document)
    return path


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Wait until no other process changes a report below a directory, and keep them out."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read_parts(path: Path, here: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Read what a report has of other parts, if it is this machine's; each says what it ran on."""
    document = json.loads(path.read_text()) if path.exists() else {}
    there = document.get("machine", {})
    if any(there.get(model) != here.get(model) for model in _MODELS):
        document = {}
    # Parts did not always say so.
    shared = {key: document.get(key) for key in ("machine", "versions")}
    parts = {part: shared | entry for part, entry in document.get("parts", {}).items()}
    return {key: document.get(key, {}) for key in ("figures", "samples")} | {"parts": parts}


def _replace(path: Path, document: Mapping[str, Any]) -> None:
    """Write a report as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(scratch, path)


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


@cache
def _commit() -> str:
    """Name the commit, with a `+` where the tree has changes besides benchmark results.

    What runs is what was there when the process began.
    """
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
