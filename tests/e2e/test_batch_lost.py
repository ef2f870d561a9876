"""Batches beneath a PostgreSQL that stops at once, at a small size; `make soak` has 30 stops."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.made_stores import MadeStores
from tests.soak.batch_lost import lost_batches


def test_what_is_acknowledged_is_there_and_completes(
    data_dir: Path, made_stores: MadeStores
) -> None:
    """PostgreSQL stops while batches are submitted: each line is answered and billed once."""
    made_stores.copy(data_dir.parent / "stores")
    seen = asyncio.run(lost_batches(data_dir.parent, batches=6, items=3, stops=1))
    assert seen.stops == 1
    assert seen.batches >= 4
    assert seen.lost_batches == []
    assert seen.two_ids_for_a_key == 0
    assert seen.rows == seen.items >= 3 * seen.batches
    assert seen.lost_items == seen.failed_items == 0
    assert seen.duplicate_rows == seen.duplicate_results == seen.unknown_rows == 0
