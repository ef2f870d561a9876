"""One server with the demo model for all clients, and each client in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.live_server import Server, start_server
from tests.passable import passable_directory

HERE = Path(__file__).parent
KEPT = Path(sys.prefix) / "clients"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Serve the demo model from a fresh data directory."""
    with passable_directory() as parent:
        running = start_server(parent / "data")
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="session")
def client_environment() -> Callable[[str], SimpleNamespace]:
    """Give a client's environment by its name; its commands are in `bin`."""
    return installed


def installed(name: str) -> SimpleNamespace:
    """Install what `requirements/NAME.txt` pins, once."""
    directory = KEPT / name
    requirements = HERE / "requirements" / f"{name}.txt"
    if not directory.exists():
        pip = [sys.executable, "-m", "pip", "--python", str(directory / "bin" / "python")]
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
        install = subprocess.run(
            [*pip, "install", "--quiet", "--no-deps", "--requirement", requirements], check=False
        )
        if install.returncode:
            pytest.skip(f"{name} could not be installed")
    return SimpleNamespace(bin=directory / "bin")
