"""`python -m tests.gpu` runs anywhere: each part on the CPU, at a token size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.models.hf_config import load_model_config
from tests.gpu.__main__ import PARTS, main
from tests.gpu.bench import CONFIGS

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


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_shapes_of_real_models_can_be_served(tmp_path: Path, config: Path) -> None:
    """The configs that the bench measures are ones that the engine takes."""
    (tmp_path / "config.json").write_bytes(config.read_bytes())
    assert load_model_config(tmp_path).dtype == "bfloat16"
