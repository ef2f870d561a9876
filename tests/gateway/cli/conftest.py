"""A running admin API for every test of a command that needs one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.settings import Settings
from tests.gateway.cli.admin_server import Server, ServerThread


@pytest.fixture
def server(settings: Settings) -> Iterator[Server]:
    """Run an admin API on a port of its own, announced in its data directory."""
    thread = ServerThread(settings)
    thread.start()
    try:
        yield thread.started()
    finally:
        thread.end()
