"""Build the library of `csrc/`, find it again, load it.

**How.** One run of the C++ compiler against torch's headers; no ninja, no Python headers, as the
operators register with torch themselves. Where the file lies is said in `engine.native.compiler`:
its key covers torch's version, so another torch gets a file of its own.

**Failure.** A server never compiles at start and never fails for want of this: `load` says False,
once in one line of the log, where the library is not there, is not ours, cannot be loaded, or
computes something else than torch does on a small example.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path

import torch

from engine.native.compiler import (
    BuildFailed,
    build_once,
    find_compiler,
    name_library,
    one_line,
    why_not_ours,
)

__all__ = ["BuildFailed", "build", "compiled_path", "find_compiler", "load"]

logger = logging.getLogger(__name__)

_SOURCES = Path(__file__).parent / "csrc"
_FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-psabi",
    "-fopenmp",
    "-fPIC",
    "-shared",
)


@functools.cache
def load() -> bool:
    """Load the library if it has been built; True where its operators can be used."""
    path = compiled_path()
    if not path.exists():
        logger.info("no compiled operators: 'python -m engine.native build' makes them")
        return False
    try:
        if reason := why_not_ours(path):
            logger.warning("%s is not used, torch computes instead: %s", path, reason)
            return False
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
        agrees = _agrees_with_torch()
    except (OSError, RuntimeError, AttributeError) as error:
        logger.warning("%s cannot be used, torch computes instead: %s", path, one_line(error))
        return False
    if not agrees:
        logger.warning("%s computes wrong results, torch computes instead", path)
    return agrees


def build() -> Path:
    """Compile the library unless it is there, and return its path.

    Raises: `BuildFailed`: there is no compiler, or it failed.
    """
    path = compiled_path()
    build_once(path, _arguments)
    load.cache_clear()
    return path


def compiled_path() -> Path:
    """Name the file that a build for this machine, torch and source makes."""
    return name_library((*_FLAGS, torch.__version__), _SOURCES)


def _arguments(out: Path) -> list[str]:
    home = Path(torch.__file__).parent
    include = home / "include"
    return [
        *_FLAGS,
        f"-I{include}",
        f"-I{include / 'torch/csrc/api/include'}",
        str(_SOURCES / "library.cpp"),
        f"-L{home / 'lib'}",
        "-lc10",
        "-ltorch_cpu",
        "-o",
        str(out),
    ]


def _agrees_with_torch() -> bool:
    x = torch.linspace(-4, 4, 96).view(2, 48)
    gate, up = x.chunk(2, dim=-1)
    gated = torch.ops.sluice.silu_mul(x)
    return torch.allclose(gated, torch.nn.functional.silu(gate) * up, rtol=1e-5, atol=1e-6)
