"""A queue of many tenants worked off, at a small size; `make soak` has a million items."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from gateway.store import Store
from gateway.store.postgres_server import LOGIN, SUPERUSER
from tests.soak.batch_fenced import Ground
from tests.soak.batch_queue_size import queue_size

pytestmark = pytest.mark.anyio


async def test_a_queue_is_worked_off_and_filled_again(
    store: Store, database_url: str, tmp_path: Path
) -> None:
    """Claimers beside each other get each item once, and what comes then is claimed too."""
    superuser = database_url.replace(LOGIN, SUPERUSER, 1)
    async with asyncpg.create_pool(superuser, min_size=1, max_size=2) as pool:
        ground = Ground(store, pool, database_url, tmp_path)
        seen = await queue_size(ground, items=2_000, tenants=5, after_claims=20)
    assert seen.done == 2_000
    assert len(seen.after_s) == 20
