"""Which build of torch pip is to install, asked by `make install` before it downloads one.

PyPI's torch for Linux brings CUDA along, gigabytes of it. Where there is no NVIDIA GPU, the newest
CPU build that the user's own configuration of pip leads to is asked for by name; where it leads to
none, pip takes what it finds, and a line says before the download how to come by the other. Whose
builds are trusted is the user's to say, so no index is named here. It runs in a bare environment:
it imports the standard library alone.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_PYPROJECT: Final = Path(__file__).parent.parent / "pyproject.toml"
# The driver's, WSL's, and the command that comes with both.
_NVIDIA: Final = ("/dev/nvidiactl", "/dev/nvidia0", "/usr/lib/wsl/lib/nvidia-smi")
_VERSION = re.compile(r"(?P<release>[0-9]+(?:\.[0-9]+)*)(?:\+(?P<local>[A-Za-z0-9.]+))?")
_BOUND = re.compile(r"(?P<sign>>=|<)(?P<version>[0-9.]+)")

ADVICE: Final = """\
No NVIDIA GPU here, and pip finds no CPU build of torch: the one that it takes brings CUDA along,
gigabytes that this machine has no use for. To avoid that, stop now (Ctrl-C) and name the index of
CPU builds that https://pytorch.org/get-started/locally/ shows, then run the same again:

  export PIP_EXTRA_INDEX_URL=…
"""


def newest_cpu_build(versions: Iterable[str], required: str) -> str | None:
    """Return the newest of `versions` that is a CPU build within `required`, `torch>=2.11,<2.14`.

    Pre-releases are passed over, as pip does.
    """
    found = [
        (_release(parts["release"]), text)
        for text, parts in _parsed(versions)
        if parts["local"] == "cpu" and _allows(required, _release(parts["release"]))
    ]
    return max(found)[1] if found else None


def _parsed(versions: Iterable[str]) -> list[tuple[str, re.Match[str]]]:
    return [(text, parts) for text in versions if (parts := _VERSION.fullmatch(text))]


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _allows(required: str, release: tuple[int, ...]) -> bool:
    for bound in _BOUND.finditer(required):
        is_below = release < _release(bound["version"])
        if is_below != (bound["sign"] == "<"):
            return False
    return True


def required_range() -> str:
    """Return what `pyproject.toml` asks for of torch."""
    dependencies = tomllib.loads(_PYPROJECT.read_text())["project"]["dependencies"]
    [required] = [str(one) for one in dependencies if re.match(r"torch\b", one)]
    return required


def _found_by_pip() -> list[str]:
    """List the versions of torch that pip finds, by the user's own configuration."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions"]
    done = subprocess.run([*command, "torch"], capture_output=True, text=True)
    listed = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    return listed[1].split(", ") if listed else []


def _has_nvidia_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None or any(Path(one).exists() for one in _NVIDIA)


def main() -> None:
    """Print the requirement for pip; on stderr the advice, where it is needed."""
    required = required_range()
    # What is installed was chosen before; and only Linux has builds with and without CUDA.
    if find_spec("torch") is not None or sys.platform != "linux" or _has_nvidia_gpu():
        print(required)
        return
    version = newest_cpu_build(_found_by_pip(), required)
    if version is None:
        print(ADVICE, file=sys.stderr)
    print(required if version is None else f"torch=={version}")


if __name__ == "__main__":
    main()
