"""The order in which blocks are reused, and the count of what is free."""

from __future__ import annotations

import pytest

from engine.kv.block_pool import BlockPool


def test_all_blocks_are_lent_once() -> None:
    """Allocating everything yields each block once and leaves none free."""
    pool = BlockPool(5, 16)
    assert sorted(pool.allocate(5)) == [0, 1, 2, 3, 4]
    assert pool.num_free == 0


def test_allocating_too_much_is_our_bug() -> None:
    """A pool that has too few blocks asserts and lends none of them."""
    pool = BlockPool(2, 16)
    with pytest.raises(AssertionError):
        pool.allocate(3)
    assert pool.num_free == 2


def test_freed_content_stays_findable_until_reused() -> None:
    """A hash finds a freed block until the block holds something else."""
    pool = BlockPool(2, 16)
    [block_id] = pool.allocate(1)
    pool.publish(block_id, b"a")
    pool.release([block_id])
    assert pool.lookup(b"a") == block_id
    pool.allocate(2)
    assert pool.lookup(b"a") is None
    assert pool.num_cached == 0


def test_blocks_without_content_are_reused_first() -> None:
    """A block that nothing finds goes before one that was freed earlier but can be found."""
    pool = BlockPool(2, 16)
    hashed, plain = pool.allocate(2)
    pool.publish(hashed, b"a")
    pool.release([hashed])
    pool.release([plain])
    assert pool.allocate_one() == plain


def test_tail_of_a_table_is_reused_before_its_head() -> None:
    """Of a table's cached blocks the last is reused first."""
    pool = BlockPool(3, 16)
    block_ids = pool.allocate(3)
    for block_id in block_ids:
        pool.publish(block_id, bytes([block_id]))
    pool.release(block_ids)
    assert pool.allocate(3) == block_ids[::-1]


def test_touched_blocks_outlive_others() -> None:
    """A cached block that was used again since is evicted after one that was not."""
    pool = BlockPool(2, 16)
    first, second = pool.allocate(2)
    pool.publish(first, b"first")
    pool.publish(second, b"second")
    pool.release([first])
    pool.release([second])
    pool.acquire([first])
    pool.release([first])
    pool.allocate_one()
    assert pool.lookup(b"first") == first
    assert pool.lookup(b"second") is None


def test_shared_block_is_free_when_its_last_user_leaves() -> None:
    """A block with three users is shared by two of them, and not free before all released it."""
    pool = BlockPool(1, 16)
    [block_id] = pool.allocate(1)
    pool.acquire([block_id])
    pool.acquire([block_id])
    assert pool.num_shared == 1
    pool.release([block_id])
    assert (pool.num_free, pool.num_shared) == (0, 1)
    pool.release([block_id])
    assert (pool.num_free, pool.num_shared) == (0, 0)
    pool.release([block_id])
    assert pool.num_free == 1


def test_freeing_twice_is_our_bug() -> None:
    """Releasing a block that nobody uses asserts."""
    pool = BlockPool(1, 16)
    [block_id] = pool.allocate(1)
    pool.release([block_id])
    with pytest.raises(AssertionError):
        pool.release([block_id])


def test_equal_content_keeps_its_first_block() -> None:
    """A second block with the same content stays nameless and the first stays findable."""
    pool = BlockPool(2, 16)
    first, second = pool.allocate(2)
    pool.publish(first, b"a")
    pool.publish(second, b"a")
    assert pool.lookup(b"a") == first
    pool.release([second])
    assert pool.allocate_one() == second
    assert pool.lookup(b"a") == first


def test_blocks_that_are_reused_are_of_who_has_the_most() -> None:
    """What one owner has published outlives a flood of another's, though it was used before."""
    pool = BlockPool(8, 4)
    tables = {}
    for owner, num_blocks in (("light", 2), ("flood", 6)):
        tables[owner] = pool.allocate(num_blocks)
        for block_id in tables[owner]:
            pool.publish(block_id, f"{owner}{block_id}".encode(), owner)
        pool.release(tables[owner])
    pool.allocate(4)
    assert [pool.lookup(f"light{block_id}".encode()) for block_id in tables["light"]] == [0, 1]
