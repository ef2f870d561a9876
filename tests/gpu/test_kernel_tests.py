"""The kernels' tests in processes of their own, and what is kept of them whatever happens."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from scheduler.bench.part import Part
from tests.gpu import kernel_tests
from tests.gpu.kernel_tests import run_kernel_tests


def counts(part: Part) -> dict[str, float]:
    return {
        key.removeprefix("correctness_kernel_tests_"): figure.value
        for key, figure in part.figures.items()
    }


@pytest.mark.parametrize("num_workers", [1, 2])
def test_kernel_tests_are_counted(tmp_path: Path, num_workers: int) -> None:
    """Tests are run in processes without the interpreter; those that fail are named."""
    (tmp_path / "test_some.py").write_text(
        "import os, pytest\n"
        "def test_good(): assert 'TRITON_INTERPRET' not in os.environ\n"
        "def test_bad(): assert False\n"
        "def test_skipped(): pytest.skip('no GPU')\n"
        "@pytest.fixture\n"
        "def broken():\n"
        "    yield\n"
        "    raise RuntimeError\n"
        "def test_bad_end(broken): pass\n"
    )
    (tmp_path / "test_unreadable.py").write_text("import nothing_of_this_name\n")
    *_, part = run_kernel_tests(timeout_s=60, tests=tmp_path, num_workers=num_workers)
    # One that cannot be read is one that fails; what could be read runs all the same.
    assert counts(part) == {"passed": 1, "failed": 3, "skipped": 1, "left_out": 0}
    assert set(part.samples["failed"]) == {
        *("test_some.py::test_bad", "test_some.py::test_bad_end", "test_unreadable.py")
    }
    assert part.figures["correctness_kernel_tests_failed"].met is False
    assert "assert False" in part.samples["output"]


def test_time_that_is_up_leaves_what_was_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test that hangs costs those after it, and none before; they are counted as left out."""
    (tmp_path / "test_some.py").write_text(
        "import time\n"
        "def test_good(): pass\n"
        "def test_hangs(): time.sleep(600)\n"
        "def test_after(): pass\n"
    )
    parts = run_kernel_tests(timeout_s=1000, tests=tmp_path, num_workers=1)
    while not counts(next(parts))["passed"]:
        pass
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 1000, sleep=time.sleep)
    monkeypatch.setattr(kernel_tests, "time", later)
    *_, part = parts
    assert counts(part) == {"passed": 1, "failed": 0, "skipped": 0, "left_out": 2}
    assert part.figures["correctness_kernel_tests_left_out"].met is False


def test_test_that_hangs_takes_its_worker_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test that hangs counts as failed after a while, and the others run to their ends."""
    (tmp_path / "test_some.py").write_text(
        "import pytest, time\n"
        "@pytest.mark.parametrize('number', range(8))\n"
        "def test_some(number): time.sleep(600 * (number == 1))\n"
    )
    monkeypatch.setattr(kernel_tests, "_HANGS_AFTER_S", 2.0)
    *_, part = run_kernel_tests(timeout_s=100, tests=tmp_path, num_workers=2)
    assert counts(part) == {"passed": 7, "failed": 1, "skipped": 0, "left_out": 0}
    assert part.samples["failed"] == ["test_some.py::test_some[1]"]


def test_gpu_that_has_failed_takes_one_test(tmp_path: Path) -> None:
    """An error that stays as long as the process ends its worker, and another does the rest."""
    (tmp_path / "test_some.py").write_text(
        "import sys, types, pytest\n"
        "class Cuda:\n"
        "    failed = False\n"
        "    def is_initialized(self): return True\n"
        "    def synchronize(self):\n"
        "        if self.failed: raise RuntimeError('illegal memory access')\n"
        "cuda = Cuda()\n"
        "sys.modules['torch'] = types.SimpleNamespace(cuda=cuda)\n"
        "@pytest.mark.parametrize('number', range(12))\n"
        "def test_some(number):\n"
        "    cuda.failed = cuda.failed or number == 3\n"
        "    cuda.synchronize()\n"
    )
    *_, part = run_kernel_tests(timeout_s=60, tests=tmp_path, num_workers=2)
    assert counts(part) == {"passed": 11, "failed": 1, "skipped": 0, "left_out": 0}
    assert part.samples["failed"] == ["test_some.py::test_some[3]"]
