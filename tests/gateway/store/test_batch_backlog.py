"""What batches have left, on a real PostgreSQL."""

from __future__ import annotations

import pytest

from gateway.domain.batch import BatchBacklog
from gateway.store import Store
from tests.gateway.store.batch_rows import claimed, running_batch

pytestmark = pytest.mark.anyio


async def test_the_backlog_is_of_all_batches_that_are_open(store: Store) -> None:
    """Items that wait and run are counted apart, and the oldest batch has its age."""
    assert await store.batch_backlog.backlog() == BatchBacklog(0, 0, 0.0)
    ours = await running_batch(store, 5)
    await running_batch(store, 2, tenant=1)
    await claimed(store, ours, 3)
    found = await store.batch_backlog.backlog()
    assert (found.num_pending, found.num_running) == (4, 3)
    assert 0.0 < found.oldest_s < 600.0
