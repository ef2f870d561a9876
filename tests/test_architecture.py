"""The floors of the house: what may import what, and what may not be loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.circles import circles, read_package
from tests.house import FLOORS

ROOT = Path(__file__).parent.parent


def test_imports_run_down_only() -> None:
    """Every contract of import-linter holds, type-only imports counted."""
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("floor", FLOORS, ids=lambda floor: floor.name)
def test_no_circles(floor: Path) -> None:
    """No modules import each other in a circle, inside functions and for types included."""
    assert circles(read_package(floor)) == []


@pytest.mark.parametrize(
    "module",
    [
        "scheduler",
        "scheduler.core",
        "scheduler.service",
        "engine.contract",
        "engine.config",
        "engine.kv",
        "engine.open",
        "engine.simulated",
        "engine.text",
        "gateway.cli.commands",
    ],
)
def test_module_loads_no_torch(module: str) -> None:
    """A fresh interpreter that imports the module has not loaded torch."""
    heavy = "{'torch', 'triton', 'transformers'}"
    code = f"import sys, {module}; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("module", ["scheduler.service", "engine.simulated"])
def test_lower_floors_know_no_web_or_store(module: str) -> None:
    """The scheduler and the simulated engine run where no gateway dependency is installed."""
    code = (
        f"import sys, {module}; "
        "print(*({'starlette', 'sqlalchemy', 'redis', 'pydantic', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("floor", ["engine", "scheduler", "gateway", "migrations"])
def test_nothing_that_runs_code_from_data(floor: str) -> None:
    """No file of the product unpickles, evals or loads torch archives."""
    banned = ("import pickle", "import marshal", "torch.load(", "yaml.load(", " eval(", " exec(")
    for path in (ROOT / floor).rglob("*.py"):
        text = path.read_text()
        assert not [word for word in banned if word in text], path
