"""One running server for the tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live_server import Server, start_server
from tests.made_stores import MadeStores
from tests.passable import passable_directory


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """Name a data directory of the test's own, not there yet."""
    with passable_directory() as parent:
        yield parent / "data"


@pytest.fixture
def made_data_dir(made_stores: MadeStores, data_dir: Path) -> Path:
    """Name a data directory of the test's own whose stores are made, for who tests no first start.

    They are empty: a server still shows its keys.
    """
    return made_stores.copy(data_dir)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Serve the demo model from a fresh data directory."""
    with passable_directory() as parent:
        running = start_server(parent / "data", cold=True)
        yield running
        assert running.stop() == 0
