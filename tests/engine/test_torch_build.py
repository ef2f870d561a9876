"""Which build of torch is asked for, and what is said where there is none to ask for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine import torch_build
from engine.torch_build import newest_cpu_build, required_range

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        (["2.13.1", "2.13.0+cpu", "2.12.1+cpu"], "2.13.0+cpu"),
        (["2.13.0+cu130", "2.13.0+cpu", "2.13.0"], "2.13.0+cpu"),
        (["2.9.1+cpu", "2.11.0+cpu", "2.12.10+cpu", "2.12.9+cpu"], "2.12.10+cpu"),
        (["2.14.0+cpu", "2.10.2+cpu", "2.13.0"], None),
        (["2.13.0rc1+cpu", "2.13.0.dev20260101+cpu"], None),
        ([], None),
    ],
    ids=["older", "beside-cuda", "by-number", "out-of-range", "pre-releases", "none"],
)
def test_the_newest_cpu_build_in_range_is_named(versions: list[str], expected: str | None) -> None:
    """Of what pip finds, the newest CPU build that is allowed, though a CUDA build be newer."""
    assert newest_cpu_build(versions, "torch>=2.11,<2.14") == expected


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Be a Linux without torch and without a GPU, where pip finds nothing."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(torch_build, "find_spec", lambda name: None)
    monkeypatch.setattr(torch_build, "_has_nvidia_gpu", lambda: False)
    monkeypatch.setattr(torch_build, "_found_by_pip", list)
    return monkeypatch


def test_without_a_cpu_build_the_way_to_one_is_said_first(
    bare_machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pip gets the range alone, and whoever waits for it reads how to avoid CUDA."""
    torch_build.main()
    printed = capsys.readouterr()
    assert printed.out == f"{required_range()}\n"
    assert "export PIP_EXTRA_INDEX_URL=" in printed.err


def test_a_machine_with_a_gpu_is_left_to_pip(
    bare_machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a CPU build nor a word, where there is a GPU."""
    bare_machine.setattr(torch_build, "_has_nvidia_gpu", lambda: True)
    bare_machine.setattr(torch_build, "_found_by_pip", lambda: ["2.13.0+cpu"])
    torch_build.main()
    assert capsys.readouterr() == (f"{required_range()}\n", "")


def test_a_cpu_build_that_pip_finds_is_asked_for(tmp_path: Path) -> None:
    """In an environment with nothing but pip, a wheel of the user's configuration is named."""
    wheel = tmp_path / "torch-2.13.0+cpu-py3-none-any.whl"
    wheel.touch()
    # -S: nothing is installed; pip is then found by its own folder alone.
    pip = Path(next(p for p in sys.path if (Path(p) / "pip").is_dir()))
    (tmp_path / "site").mkdir()
    (tmp_path / "site/pip").symlink_to(pip / "pip")
    code = (
        "from engine import torch_build; "
        "torch_build._has_nvidia_gpu = lambda: False; torch_build.main()"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=ROOT,
        env={
            "PYTHONPATH": str(tmp_path / "site"),
            "PIP_NO_INDEX": "1",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_FIND_LINKS": str(tmp_path),
        },
        capture_output=True,
        text=True,
    )
    assert done.stdout == "torch==2.13.0+cpu\n", done.stderr
