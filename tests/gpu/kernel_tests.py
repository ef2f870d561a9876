"""Runs the tests of the kernels where kernels are compiled, and counts while they run."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from scheduler.bench.part import Part, Row, grow
from scheduler.bench.report import Figure, at_least, at_most
from tests.gpu import kernel_test_log
from tests.gpu.asked import Asked

ROOT = Path(__file__).parents[2]
KERNEL_TESTS = ROOT / "tests" / "engine" / "kernels"
# Few and fast, interpreted as well: whether it runs, not what it says.
QUICK_TESTS = KERNEL_TESTS / "test_quantize_rows.py"
# Each takes some memory of the GPU for itself.
_MOST_WORKERS = 8
_MOST_SHOWN = 10
_LOOKED_EVERY_S = 1.0
# Most of the time of a test goes by while kernels are compiled.
_HANGS_AFTER_S = 120.0


def run(asked: Asked, _: str) -> Iterator[tuple[str, Part]]:
    """Run them for half of the time that there is: the other half is the families'."""
    tests = QUICK_TESTS if asked.quick else KERNEL_TESTS
    # Each process loads torch: few tests are sooner done in one.
    num_workers = 1 if asked.quick else None
    timeout_s = asked.deadline.left_s / 2
    for part in grow(run_kernel_tests(timeout_s=timeout_s, tests=tests, num_workers=num_workers)):
        yield "kernels", part


def run_kernel_tests(
    *, timeout_s: float, tests: Path = KERNEL_TESTS, num_workers: int | None = None
) -> Iterator[Part]:
    """Run the tests in processes of their own, without the interpreter; failures are named.

    Nothing but pytest is needed: neither the project's options nor other tests' fixtures count.
    Where there is xdist they run side by side, in a process for each core, eight at most. Those
    that the time did not suffice for are counted as left out.
    """
    if num_workers is None:
        num_workers = min(len(os.sched_getaffinity(0)), _MOST_WORKERS)
    with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as scratch:
        log, output = Path(scratch) / "log", Path(scratch) / "output"
        log.touch()
        until_s = time.monotonic() + max(1.0, timeout_s)
        with output.open("w") as file:
            process = subprocess.Popen(
                _command(tests, num_workers),
                cwd=ROOT,
                env=_environment(log),
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            # The first is of no test yet: all of few tests may end between two looks.
            size = -1
            while process.poll() is None and time.monotonic() < until_s:
                if log.stat().st_size > size:
                    size = log.stat().st_size
                    yield _count(log, "")
                time.sleep(min(_LOOKED_EVERY_S, max(0.0, until_s - time.monotonic())))
        finally:
            timed_out = process.poll() is None
            process.kill()
            process.wait()
        end = output.read_text(errors="replace")[-4000:]
        yield _count(log, f"{end}\nthe time was up after {timeout_s:.0f} s" if timed_out else end)


def _command(tests: Path, num_workers: int) -> list[str]:
    directory = tests if tests.is_dir() else tests.parent
    command = [
        *(sys.executable, "-m", "pytest", str(tests), "-q", "-p", "no:cacheprovider"),
        *("-c", os.devnull, "--rootdir", str(directory), "--confcutdir", str(directory)),
        *("--import-mode", "importlib", "--tb", "short", "-p", kernel_test_log.__name__),
        "--continue-on-collection-errors",
    ]
    if num_workers > 1 and importlib.util.find_spec("xdist") is not None:
        command += ["-p", "xdist.plugin", "-n", str(num_workers)]
    return command


def _environment(log: Path) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment[kernel_test_log.LOG] = str(log)
    environment[kernel_test_log.HANGS_AFTER_S] = str(_HANGS_AFTER_S)
    # What else is installed there is not to take part.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return environment


def _count(log: Path, end: str) -> Part:
    """Count the tests that have ended, each by the last that was heard of it."""
    outcomes: dict[str, str] = {}
    collected: set[str] = set()
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        collected |= set(entry.get("collected", ()))
        if "test" in entry:
            outcomes[entry["test"]] = entry["outcome"]
    failed = [test for test, outcome in outcomes.items() if outcome == "failed"]
    counts = {kind: list(outcomes.values()).count(kind) for kind in ("passed", "failed", "skipped")}
    part = Part(
        {
            "correctness_kernel_tests_passed": at_least(counts["passed"], 1, "tests"),
            "correctness_kernel_tests_failed": at_most(counts["failed"], 0, "tests"),
            "correctness_kernel_tests_skipped": Figure(counts["skipped"], "tests"),
            "correctness_kernel_tests_left_out": at_most(
                len(collected - outcomes.keys()), 0, "tests"
            ),
        },
        {"failed": failed},
        [Row(test, None, note="failed") for test in failed[:_MOST_SHOWN]],
    )
    if counts["failed"] or not counts["passed"]:
        part.samples["output"] = end
    return part
