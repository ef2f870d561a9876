"""What runs on a bare GPU machine asks for nothing that such a machine lacks."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Of ours: what stands on torch alone, and the modules of tests that others import.
OURS = {"engine", "scheduler", "tests", *(path.stem for path in (ROOT / "tests").glob("*.py"))}
THERE = {
    *("torch", "triton", "numpy", "tokenizers", "safetensors", "jinja2"),
    *("pytest", "_pytest", "transformers"),
}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def ours(path: Path, seen: set[Path]) -> None:
    """Gather the modules of tests that a file imports, and what those import."""
    seen.add(path)
    for name in imported(path):
        for found in (ROOT / f"{name.replace('.', '/')}.py", ROOT / "tests" / f"{name}.py"):
            if found.is_file() and found not in seen and ROOT / "tests" in found.parents:
                ours(found, seen)


def test_gpu_parts_and_kernel_tests_need_nothing_more() -> None:
    """Every import of the parts, of the kernels' tests and of what they use is at hand there."""
    parts = (path for path in (ROOT / "tests/gpu").glob("*.py") if "test_" not in path.name)
    files: set[Path] = set()
    for path in (*parts, *(ROOT / "tests/engine/kernels").glob("*.py")):
        ours(path, files)
    assert len(files) > 20
    missing = {
        (str(path.relative_to(ROOT)), name)
        for path in files
        for name in imported(path)
        if name.split(".")[0] not in {*OURS, *THERE, *sys.stdlib_module_names}
    }
    assert not missing
