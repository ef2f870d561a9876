"""Stages of `python -m tests.gpu` in this process: on the CPU, at a token size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.contract import Engine
from engine.gpu.engine import GpuEngine
from tests.gpu.__main__ import parse, run_one
from tests.gpu.asked import Asked
from tests.gpu.deadline import Deadline
from tests.gpu.stages import list_stages

ROOT = Path(__file__).parents[2]


def run(stage: str, out: Path, *options: str) -> int:
    return run_one(
        parse(["--stage", stage, "--device", "cpu", "--quick", "--out", str(out), *options])
    )


@pytest.mark.thorough
@pytest.mark.parametrize("part", ["correctness", "soak", "bench"])
def test_part_holds_the_gpu_engine_to_its_goals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """What will drive the engine of a GPU there drives its logic here, two steps in flight."""
    opened = []

    def open_engine(config: EngineConfig) -> Engine:
        opened.append(config)
        engine = GpuEngine(config)
        assert engine.info.depth == 2
        return engine

    monkeypatch.setattr("scheduler.bench.setup.open_engine", open_engine)
    quick = Asked(device="cpu", deadline=Deadline(60), quick=True)
    for stage in list_stages(part, quick):
        if stage != "correctness:kernels":
            assert run(stage, tmp_path) == 0
    assert all(config.graphs for config in opened)
    report = json.loads((tmp_path / "gpu-cpu.json").read_text())
    assert all(entry["complete"] for entry in report["parts"].values())
    for figure in report["figures"].values():
        assert set(figure) == {"value", "unit", "goal", "met"}


@pytest.mark.thorough
def test_eager_part_captures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without graphs every engine is opened so, whatever its part asks for."""
    opened = []

    def open_engine(config: EngineConfig) -> Engine:
        opened.append(config.graphs)
        return GpuEngine(config)

    monkeypatch.setattr("scheduler.bench.setup.open_engine", open_engine)
    for stage in ("soak", "bench:demo:loop-lag"):
        assert run(stage, tmp_path, "--eager") == 0
    assert opened == [False, False]
    report = json.loads((tmp_path / "gpu-cpu.json").read_text())
    assert all(key.endswith("_eager") for key in report["figures"])


def test_needs_nothing_of_the_gateway() -> None:
    """A machine that has what the engine needs, and transformers, can run it."""
    absent = "gateway starlette sqlalchemy redis pydantic pydantic_settings msgspec uvicorn"
    modules = "__main__ bench correctness kernel_tests quality soak step_profiles tune tune_kernels"
    code = (
        f"import sys, {', '.join(f'tests.gpu.{name}' for name in modules.split())}; "
        f"print({set(absent.split())} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_device_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the device nothing is written, and one line says so."""
    assert run("soak", tmp_path, "--device", "tpu") == 1
    assert "tpu" in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())
