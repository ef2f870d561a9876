"""A world of batches for each test here that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.store import Store
from tests.gateway.services.batches.world import World, open_world


@pytest.fixture
async def world(store: Store, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(store, tmp_path / "files") as opened:
        yield opened
