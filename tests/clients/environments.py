"""An environment for each client of others: its packages at pinned versions, and nothing of ours.

A client's requirements are complete, so pip resolves nothing; what is made is kept in
`.venv/clients` under a name that ends in the hash of what it was made from, and an older one of the
same client is removed. A start with other requirements makes a new one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
KEPT: Final = Path(sys.prefix) / "clients"
INSTALL_TIMEOUT_S: Final = 600
# Its loader of data is torch's. What is here serves it as well, and is a gigabyte less.
NEED_TORCH: Final = ("guidellm",)
TORCH: Final = ("torch", "torch-*", "torchgen", "functorch", "nvidia*", "triton*")


class NotInstallable(Exception):
    """Tell that a client could not be had: no index, no npm, a version that is gone."""


@dataclass(frozen=True, slots=True)
class ClientEnvironment:
    """Hold a client's directory and where its commands are.

    `home` is its HOME: what a client writes for itself stays there.
    """

    directory: Path
    path: str

    @property
    def home(self) -> Path:
        return self.directory / "home"

    def run(
        self, *command: str | Path, cwd: Path, timeout_s: float = 120, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its commands to the end, with no model hub to ask and none of our settings."""
        found = shutil.which(command[0], path=self.path)
        assert found is not None, command[0]
        return subprocess.run(
            [found, *command[1:]],
            cwd=cwd,
            env=self._environment(env),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        return {
            "PATH": f"{self.path}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_COLOR": "1",
            "no_proxy": "127.0.0.1",
            **more,
        }


def python_environment(name: str) -> ClientEnvironment:
    """Return the environment of `requirements/NAME.txt`. Raises: `NotInstallable`."""
    requirements = HERE / "requirements" / f"{name}.txt"
    torch = b"torch" if name in NEED_TORCH else b""

    def make(directory: Path) -> None:
        _run(sys.executable, "-m", "venv", "--without-pip", str(directory))
        # Of this environment's own pip: making one in each would take longer than some clients.
        _run(
            *(sys.executable, "-m", "pip", "--disable-pip-version-check"),
            *("--python", str(directory / "bin" / "python"), "install", "--quiet"),
            *("--no-deps", "--no-compile", "--requirement", str(requirements)),
        )
        if torch:
            _link_torch(directory)

    directory = _kept(name, requirements.read_bytes() + sys.version.encode() + torch, make)
    return ClientEnvironment(directory, str(directory / "bin"))


def _link_torch(directory: Path) -> None:
    ours, theirs = (
        Path(sysconfig.get_path("purelib", vars={"base": str(base)}))
        for base in (sys.prefix, directory)
    )
    for pattern in TORCH:
        for package in ours.glob(pattern):
            (theirs / package.name).symlink_to(package)


def npm_environment(name: str) -> ClientEnvironment:
    """Return the environment of `npm/NAME/package-lock.json`. Raises: `NotInstallable`.

    Node.js comes from the Python index: distributions' own is older than these clients take.
    """
    node = python_environment("node").path
    files = [HERE / "npm" / name / file for file in ("package.json", "package-lock.json")]

    def make(directory: Path) -> None:
        directory.mkdir()
        for file in files:
            shutil.copy(file, directory)
        # Their install scripts would fetch prebuilt binaries from elsewhere.
        _run(
            *("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"),
            cwd=directory,
            path=node,
        )

    directory = _kept(f"npm-{name}", b"".join(file.read_bytes() for file in files), make)
    return ClientEnvironment(directory, f"{directory / 'node_modules' / '.bin'}:{node}")


def _kept(name: str, made_from: bytes, make: Callable[[Path], None]) -> Path:
    """Return the directory that `make` made from these bytes, now or before."""
    directory = KEPT / f"{name}-{hashlib.sha256(made_from).hexdigest()[:12]}"
    done = directory / ".made"
    KEPT.mkdir(parents=True, exist_ok=True)
    with _alone(KEPT / f".{name}.lock"):
        if not done.exists():
            for old in KEPT.glob(f"{name}-" + "[0-9a-f]" * 12):
                shutil.rmtree(old)
            make(directory)
            (directory / "home").mkdir()
            done.touch()
    return directory


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        flock(file, LOCK_EX)
        yield


def _run(*command: str, cwd: Path | None = None, path: str = "") -> None:
    env = os.environ | {"PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]}
    try:
        subprocess.run(
            [shutil.which(command[0], path=env["PATH"]) or command[0], *command[1:]],
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=True,
        )
    except subprocess.CalledProcessError as exc:
        said = (exc.stderr.strip() or exc.stdout.strip()).splitlines() or ["nothing was said"]
        errors = [line for line in said if "error" in line.lower()] or said
        raise NotInstallable(" / ".join(errors[:3])) from exc
    except subprocess.TimeoutExpired as exc:
        raise NotInstallable(f"not installed in {INSTALL_TIMEOUT_S} s") from exc
