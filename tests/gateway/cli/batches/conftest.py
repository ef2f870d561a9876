"""A fake API for every test of a command that talks to one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.cli.batches.fake_api import FakeApi, running_api


@pytest.fixture
def api() -> Iterator[FakeApi]:
    """Serve an empty API on a port of its own."""
    with running_api() as api:
        yield api
