"""`python -m tests.gpu` runs anywhere: each part on the CPU, at a token size."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.contract import Engine
from engine.gpu.engine import GpuEngine
from scheduler.bench.engine_bench import WORKLOADS
from tests.gpu.__main__ import PARTS, main
from tests.gpu.asked import Asked
from tests.gpu.bench import STAGES, Stage, choose
from tests.gpu.deadline import Deadline
from tests.gpu.kernel_tests import run_kernel_tests
from tests.gpu.shapes import MODELS
from tests.gpu.step_profiles import profile_path

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", PARTS)
def test_part_runs_and_reports(tmp_path: Path, part: str) -> None:
    """A part meets its goals, and its figures are in the report of the device, in the one shape."""
    arguments = ["--part", part, "--device", "cpu", "--quick", "--out", str(tmp_path)]
    assert main([*arguments, "--commit", "abc"]) == 0
    report = json.loads((tmp_path / "gpu-cpu.json").read_text())
    assert report["commit"] == "abc"
    assert report["figures"]
    for figure in report["figures"].values():
        assert set(figure) == {"value", "unit", "goal", "met"}
    assert report["machine"]
    assert report["versions"]["torch"]


@pytest.mark.parametrize("part", ["correctness", "soak", "bench"])
def test_part_holds_the_gpu_engine_to_its_goals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """What will drive the engine of a GPU there drives its logic here, two steps in flight."""
    opened = []

    def open_engine(config: EngineConfig) -> Engine:
        opened.append(GpuEngine(config))
        return opened[-1]

    monkeypatch.setattr("scheduler.bench.setup.open_engine", open_engine)
    arguments = ["--part", part, "--device", "cpu", "--quick", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert opened[0].info.depth == 2


def test_needs_nothing_of_the_gateway() -> None:
    """A machine that has what the engine needs, and transformers, can run it."""
    absent = "gateway starlette sqlalchemy redis pydantic pydantic_settings msgspec uvicorn"
    code = f"import sys, tests.gpu.__main__; print({set(absent.split())} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_device_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the device nothing is written, and one line says so."""
    arguments = ["--part", "soak", "--device", "tpu", "--out", str(tmp_path)]
    assert main(arguments) == 1
    assert "tpu" in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def asked(**narrowed: tuple[str, ...] | str) -> Asked:
    return Asked(device="cuda", deadline=Deadline(60), **narrowed)  # type: ignore[arg-type]


def test_bench_can_be_narrowed_down() -> None:
    """A model, a workload, or both are picked from the stages, and what none has is added."""
    assert choose(asked()) == list(STAGES)
    assert {stage.model for stage in choose(asked(models=("qwen3-4b",)))} == {"qwen3-4b"}
    assert {stage.workloads for stage in choose(asked(workloads=("peer",)))} == {("peer",)}
    assert choose(asked(models=("qwen3-8b",), workloads=("1k1k",))) == [
        Stage("qwen3-8b", ("1k1k",), rounds=1),
        Stage("qwen3-8b", ("1k1k",), rounds=1, fp8="both"),
    ]
    assert choose(asked(models=("qwen3-8b",), workloads=("1k1k",), fp8="kv")) == [
        Stage("qwen3-8b", ("1k1k",), rounds=1, fp8="kv")
    ]
    assert choose(asked(models=("qwen3-4b",), workloads=("mixed",))) == [
        Stage("qwen3-4b", ("mixed",))
    ]


def test_stages_name_what_there_is() -> None:
    """Every stage of the bench is of a model that has a config, and of workloads that exist."""
    assert {stage.model for stage in STAGES} == set(MODELS)
    assert {workload for stage in STAGES for workload in stage.workloads} <= set(WORKLOADS)


def test_profiles_are_written_where_asked(tmp_path: Path) -> None:
    """A profile is called after its device and model, and `--out` moves it."""
    options = Asked(device="cpu", deadline=Deadline(60), out=tmp_path)
    assert profile_path(options, "qwen3-8b") == tmp_path / "profiles" / "engine-cpu-qwen3-8b.json"
    assert profile_path(replace(options, out=None), "qwen3-8b").parent == ROOT / "engine/profiles"


def test_kernel_tests_are_counted(tmp_path: Path) -> None:
    """Tests are run in a process without the interpreter; those that fail are named."""
    (tmp_path / "test_some.py").write_text(
        "import os\n"
        "def test_good(): assert 'TRITON_INTERPRET' not in os.environ\n"
        "def test_bad(): assert False\n"
    )
    part = run_kernel_tests(timeout_s=60, directory=tmp_path)
    assert part.figures["correctness_kernel_tests_passed"].value == 1
    assert part.figures["correctness_kernel_tests_failed"].met is False
    assert part.samples["failed"] == ["test_bad"]
    assert "assert False" in part.samples["output"]
