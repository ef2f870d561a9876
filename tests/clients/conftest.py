"""One server with the demo model for all clients, and each client in an environment of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import (
    HERE,
    ClientEnvironment,
    NotInstallable,
    npm_environment,
    python_environment,
)
from tests.live_server import Server, start_server
from tests.passable import passable_directory


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Serve the demo model from a fresh data directory."""
    with passable_directory() as parent:
        running = start_server(parent / "data")
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="session")
def client_environment() -> Callable[[str], ClientEnvironment]:
    """Give a Python client's environment by its name; skip where it cannot be installed."""
    return _or_skip(python_environment)


@pytest.fixture(scope="session")
def npm_client() -> Callable[[str], ClientEnvironment]:
    """Give an npm client's environment by its name; skip where it cannot be installed."""
    return _or_skip(npm_environment)


def _or_skip(make: Callable[[str], ClientEnvironment]) -> Callable[[str], ClientEnvironment]:
    def give(name: str) -> ClientEnvironment:
        try:
            return make(name)
        except NotInstallable as exc:
            pytest.skip(f"{name} could not be installed: {exc}")

    return give


@pytest.fixture
def answers(server: Server, tmp_path: Path) -> Callable[..., Any]:
    """Run one of `programs/` in a client's environment and return the JSON of its last line."""

    def run(
        client: ClientEnvironment, program: str, *, interpreter: str = "python", **env: str
    ) -> Any:
        done = client.run(
            interpreter,
            HERE / "programs" / program,
            cwd=tmp_path,
            SLUICE_BASE_URL=server.api,
            SLUICE_API_KEY=server.key,
            **env,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run
