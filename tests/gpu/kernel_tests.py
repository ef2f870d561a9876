"""Runs the tests of the kernels where kernels are compiled, and counts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from scheduler.bench.part import Part
from scheduler.bench.report import Figure, at_least, at_most

ROOT = Path(__file__).parents[2]
KERNEL_TESTS = ROOT / "tests" / "engine" / "kernels"


def run_kernel_tests(*, timeout_s: float, directory: Path = KERNEL_TESTS) -> Part:
    """Run the tests in a process of its own, without the interpreter; failures are named.

    Nothing but pytest is needed: neither the project's options nor other tests' fixtures count.
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as scratch:
        report = Path(scratch) / "report.xml"
        command = [
            *(sys.executable, "-m", "pytest", str(directory), "-q", "-p", "no:cacheprovider"),
            *("-c", os.devnull, "--rootdir", str(directory), "--confcutdir", str(directory)),
            *("--import-mode", "importlib", "--tb", "short", "--junitxml", str(report)),
        ]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=max(1.0, timeout_s),
            )
            end = done.stdout[-4000:] + done.stderr[-1000:]
        except subprocess.TimeoutExpired:
            end = f"the time was up after {timeout_s:.0f} s"
        # It is written at the end alone.
        suites = list(ElementTree.parse(report).iter("testsuite")) if report.exists() else []
    return _count(suites, end)


def _count(suites: list[ElementTree.Element], end: str) -> Part:
    def total(name: str) -> int:
        return sum(int(suite.get(name, "0")) for suite in suites)

    bad = total("failures") + total("errors")
    failed = [
        str(case.get("name"))
        for suite in suites
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    passed = total("tests") - bad - total("skipped")
    part = Part(
        {
            "correctness_kernel_tests_passed": at_least(passed, 1, "tests"),
            "correctness_kernel_tests_failed": at_most(bad, 0, "tests"),
            "correctness_kernel_tests_skipped": Figure(total("skipped"), "tests"),
        },
        {"failed": failed},
    )
    if bad or not passed:
        part.samples["output"] = end
    return part
