"""Build the library of `csrc/`, find it again, load it.

**Where.** `$XDG_CACHE_HOME/sluice/native` (or `~/.cache`), one file a key: a hash of the sources,
the flags, torch's version and this machine's processor. So another torch, a new checkout or a home
directory shared between machines gets a file of its own and never loads a wrong one.

**How.** One run of the C++ compiler against torch's headers; no ninja, no Python headers, as the
operators register with torch themselves. A lock keeps two builds apart, and the file appears by a
rename, so a reader sees all of it or nothing.

**Failure.** A server never compiles at start and never fails for want of this: `load` says False,
once in one line of the log, where the library is not there, cannot be loaded, or computes
something else than torch does on a small example. Nor is one loaded that somebody else could have
written, or whose bytes are not those that were built: their hash lies beside it.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
from pathlib import Path

import torch

from engine.errors import EngineError
from engine.owned_file import why_not_owned

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
_TIMEOUT_S = 600


class BuildFailed(EngineError):
    """The library cannot be built here; the message says why in one line."""


@functools.cache
def load() -> bool:
    """Load the library if it has been built; True where its operators can be used."""
    path = library_path()
    if not path.exists():
        logger.info("no compiled operators: 'python -m engine.native build' makes them")
        return False
    try:
        if reason := _why_not_ours(path):
            logger.warning("%s is not used, torch computes instead: %s", path, reason)
            return False
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
        agrees = _agrees_with_torch()
    except (OSError, RuntimeError, AttributeError) as error:
        logger.warning("%s cannot be used, torch computes instead: %s", path, _one_line(error))
        return False
    if not agrees:
        logger.warning("%s computes wrong results, torch computes instead", path)
    return agrees


def build() -> Path:
    """Compile the library unless it is there, and return its path.

    Raises: `BuildFailed`: there is no compiler, or it failed.
    """
    path = library_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (path.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists() or _why_not_ours(path):
            partial = path.with_suffix(".partial")
            _compile(partial)
            # First the hash: a library without one is not used.
            _hash_path(path).write_text(_hash(partial) + "\n")
            partial.rename(path)
    load.cache_clear()
    return path


def library_path() -> Path:
    """Name the file that a build for this machine, torch and source makes."""
    digest = hashlib.sha256()
    for part in (*_FLAGS, torch.__version__, platform.machine(), _processor()):
        digest.update(part.encode() + b"\0")
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "sluice" / "native" / f"{digest.hexdigest()[:20]}.so"


def _why_not_ours(path: Path) -> str | None:
    """Say why a library may not be what was built here; None: it is."""
    if reason := why_not_owned(path):
        return reason
    try:
        expected = _hash_path(path).read_text().strip()
    except OSError:
        return "its hash is not beside it; build it again"
    return None if _hash(path) == expected else "its hash is another; build it again"


def _hash_path(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def find_compiler() -> str | None:
    """Find the C++ compiler: $CXX, else the usual names."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def _compile(out: Path) -> None:
    compiler = find_compiler()
    if compiler is None:
        raise BuildFailed("no C++ compiler was found: install g++ or clang++, or set CXX")
    home = Path(torch.__file__).parent
    include = home / "include"
    command = [
        compiler,
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
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildFailed(f"{compiler} could not be run: {_one_line(error)}") from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise BuildFailed(f"{compiler} failed: {(errors or ['no message'])[0][:300]}")


def _processor() -> str:
    """Describe what -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = ("model name", "flags", "Features", "CPU part")
    found = {line.split(":")[0].strip(): line for line in lines if line.startswith(names)}
    return "\n".join(found[name] for name in sorted(found))


def _agrees_with_torch() -> bool:
    x = torch.linspace(-4, 4, 96).view(2, 48)
    gate, up = x.chunk(2, dim=-1)
    gated = torch.ops.sluice.silu_mul(x)
    return torch.allclose(gated, torch.nn.functional.silu(gate) * up, rtol=1e-5, atol=1e-6)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
