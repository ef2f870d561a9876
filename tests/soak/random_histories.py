"""The random histories of `make test`, and forty times as many: of scheduler, engine and quotas."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from scheduler.bench.report import Figure, at_least, at_most
from tests.histories import FACTOR

ROOT: Final = Path(__file__).parent.parent.parent
_FACTOR: Final = 40


def random_histories(directory: Path) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Run every test of random histories with forty times as many of them."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "histories",
            "--timeout",
            "0",
            "-p",
            "no:cacheprovider",
        ],
        cwd=ROOT,
        env=os.environ | {FACTOR: str(_FACTOR)},
        stdout=subprocess.PIPE,
        text=True,
    )
    print(done.stdout, file=sys.stderr)
    passed, failed = (_count(done.stdout, word) for word in ("passed", "failed"))
    figures = {
        "histories_factor": Figure(_FACTOR, "ratio"),
        "histories_tests_passed": at_least(passed, 1, "tests"),
        "histories_tests_failed": at_most(failed + _count(done.stdout, "error"), 0, "tests"),
    }
    return figures, {"random_histories": {"summary": done.stdout.splitlines()[-1:]}}


def _count(output: str, word: str) -> int:
    found = re.search(rf"(\d+) {word}", output.splitlines()[-1])
    return int(found[1]) if found else 0
