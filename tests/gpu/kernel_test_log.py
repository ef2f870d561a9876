"""A plugin of pytest that writes which tests there are, and how each ended as soon as it did.

pytest's own reports are written at its end, and a run that is killed would have none. The file is
named by the environment; it has a JSON object a line. A worker of xdist whose GPU has failed for
good ends, as does one whose test hangs, and another goes on with the tests that it had left.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.gpu.die_with_parent import die_with_parent

# Names of the environment: the file, and the seconds after which a test hangs.
LOG, HANGS_AFTER_S = "SLUICE_KERNEL_TEST_LOG", "SLUICE_KERNEL_TEST_HANGS_AFTER_S"


def pytest_configure(config: pytest.Config) -> None:
    """Log in the process that hears of all tests, and look after the GPU in those that run them."""
    die_with_parent()
    in_worker = hasattr(config, "workerinput")
    config.pluginmanager.register(_Worker() if in_worker else _Log(Path(os.environ[LOG])))


class _Log:
    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._write({"collected": [item.nodeid for item in session.items]})

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._write({"collected": list(ids)})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write({"test": report.nodeid, "outcome": report.outcome})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test is its call; a fixture before or after it counts where it did not go well.
        if report.when == "call" or report.outcome != "passed":
            self._write({"test": report.nodeid, "outcome": report.outcome})

    def _write(self, line: Mapping[str, object]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


class _Worker:
    def __init__(self) -> None:
        self._failed = False
        self._hangs_after_s = float(os.environ[HANGS_AFTER_S])

    def pytest_runtest_logstart(self) -> None:
        faulthandler.dump_traceback_later(self._hangs_after_s, exit=True, file=sys.__stderr__)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or report.failed

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        if self._failed and _gpu_has_failed():
            # Not `sys.exit`: what ends properly might wait for the GPU.
            os._exit(1)
        self._failed = False


def _gpu_has_failed() -> bool:
    """Tell whether an error has come that stays as long as the process."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
