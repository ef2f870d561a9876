"""Compile a library once, find it again, and use none that somebody else may have made.

**Where.** `$XDG_CACHE_HOME/sluice/native` (or `~/.cache`), one file a key, which covers all that
the file depends on, this machine's processor among it. So a new checkout, or a home directory
shared between machines, gets a file of its own and never loads a wrong one. A lock keeps two builds
apart, and the file appears by a rename, so a reader sees all of it or nothing.

**Whose.** None is loaded that somebody else could have written, or whose bytes are not those that
were built: their hash lies beside it. Importing this loads no torch.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from engine.errors import EngineError
from engine.owned_file import why_not_owned

_TIMEOUT_S = 600


class BuildFailed(EngineError):
    """A library cannot be built here; the message says why in one line."""


def name_library(parts: Iterable[str], sources: Path) -> Path:
    """Name the file that a build of all in `sources` makes, given what else it depends on."""
    digest = hashlib.sha256()
    for part in (*parts, platform.machine(), _processor()):
        digest.update(part.encode() + b"\0")
    for source in sorted(sources.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "sluice" / "native" / f"{digest.hexdigest()[:20]}.so"


def build_once(path: Path, arguments: Callable[[Path], list[str]]) -> None:
    """Compile a library unless it is there, by the compiler's `arguments` for a file to write.

    Raises: `BuildFailed`: there is no compiler, or it failed.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (path.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists() or why_not_ours(path):
            partial = path.with_suffix(".partial")
            _compile(arguments(partial))
            # First the hash: a library without one is not used.
            _hash_path(path).write_text(_hash(partial) + "\n")
            partial.rename(path)


def why_not_ours(path: Path) -> str | None:
    """Say why a library may not be what was built here; None: it is."""
    if reason := why_not_owned(path):
        return reason
    try:
        expected = _hash_path(path).read_text().strip()
    except OSError:
        return "its hash is not beside it; build it again"
    return None if _hash(path) == expected else "its hash is another; build it again"


def find_compiler() -> str | None:
    """Find the C++ compiler: $CXX, else the usual names."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def one_line(error: Exception) -> str:
    """Put what an error says in a line of a log."""
    return " ".join(str(error).split())[:300]


def _compile(arguments: list[str]) -> None:
    compiler = find_compiler()
    if compiler is None:
        raise BuildFailed("no C++ compiler was found: install g++ or clang++, or set CXX")
    try:
        done = subprocess.run(
            [compiler, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildFailed(f"{compiler} could not be run: {one_line(error)}") from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise BuildFailed(f"{compiler} failed: {(errors or ['no message'])[0][:300]}")


def _hash_path(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _processor() -> str:
    """Describe what -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = ("model name", "flags", "Features", "CPU part")
    found = {line.split(":")[0].strip(): line for line in lines if line.startswith(names)}
    return "\n".join(found[name] for name in sorted(found))
