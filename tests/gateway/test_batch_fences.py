"""Workers in processes of their own that are killed and stopped: each item is stored once."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from gateway.store import Store
from gateway.store.postgres_server import LOGIN, SUPERUSER
from tests.soak.batch_fenced import Ground, fenced_clients

pytestmark = pytest.mark.anyio


async def test_each_item_is_stored_once_after_kills_and_stops(
    store: Store, database_url: str, tmp_path: Path
) -> None:
    """What runs say that have lost their items is dropped; `make soak` does it for minutes."""
    superuser = database_url.replace(LOGIN, SUPERUSER, 1)
    async with asyncpg.create_pool(superuser, min_size=1, max_size=2) as pool:
        ground = Ground(store, pool, database_url, tmp_path)
        seen = await fenced_clients(ground, items=100, workers=3)
    assert seen.faults.kills
    assert seen.faults.stops
    outcome = seen.outcome
    assert outcome.items == outcome.results == outcome.rows == 100
    assert outcome.stale == outcome.lost == 0
    assert outcome.duplicate_results == outcome.duplicate_rows == 0
