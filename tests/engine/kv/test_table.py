"""Block tables alone, and the whole of the KV accounting under random use."""

from __future__ import annotations

import random
from array import array
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.kv.block_pool import BlockPool
from engine.kv.table import BlockTable
from tests.histories import num_histories


def filled_table(pool: BlockPool, token_ids: array[int], salt: bytes = b"s") -> BlockTable:
    table = BlockTable(pool, salt)
    assert table.allocate(len(token_ids)) is not None
    table.publish(token_ids, len(token_ids))
    return table


def test_hit_leaves_the_last_token_to_compute() -> None:
    """A prompt that is cached whole is found but for the block of its last token."""
    pool = BlockPool(8, 4)
    token_ids = array("i", range(8))
    first = filled_table(pool, token_ids)
    assert BlockTable(pool, b"s").match(token_ids) == first.block_ids[:1]
    assert BlockTable(pool, b"s").match(array("i", range(9))) == first.block_ids


def test_what_is_withdrawn_is_never_found_again() -> None:
    """A table that is withdrawn takes its blocks' names along, those that others share too."""
    pool = BlockPool(8, 4)
    token_ids = array("i", range(12))
    suspect = filled_table(pool, token_ids)
    sharer = BlockTable(pool, b"s")
    sharer.take(sharer.match(token_ids)[:1])
    suspect.withdraw()
    assert (pool.num_free, pool.num_cached) == (7, 0)
    assert BlockTable(pool, b"s").match(token_ids) == []
    assert sharer.allocate(12) is not None
    sharer.publish(token_ids, 12)
    sharer.free()
    assert pool.num_free == 8


def test_hit_survives_free_and_comes_back_to_its_own() -> None:
    """A table that was freed finds its own blocks again."""
    pool = BlockPool(8, 4)
    token_ids = array("i", range(10))
    table = filled_table(pool, token_ids)
    before = table.block_ids[:2]
    table.free()
    assert pool.num_free == 8
    assert table.match(token_ids) == before


@pytest.mark.parametrize("seed", range(8))
def test_who_looks_again_finds_what_a_new_table_does(seed: int) -> None:
    """Whatever was published, reused, withdrawn or forgotten since it looked before."""
    rng, pool = random.Random(seed), BlockPool(8, 2)
    prompts = [array("i", [rng.randint(0, 1) for _ in range(9)]) for _ in range(4)]
    asking = [BlockTable(pool, b"s") for _ in prompts]
    held: list[BlockTable] = []
    found = 0
    for _ in range(300):
        match rng.randrange(8):
            case 0 | 1 | 2 | 3 if pool.num_free >= 5:
                prompt, table = rng.choice(prompts), BlockTable(pool, b"s")
                table.take(table.match(prompt))
                if table.allocate(rng.randint(2, 9)) is not None:
                    table.publish(prompt, 2 * rng.randint(0, len(table.block_ids) - 1))
                held.append(table)
            case 4 | 5 | 6 if held:
                held.pop(rng.randrange(len(held))).free()
            case 7 if held and rng.random() < 0.5:
                held.pop(rng.randrange(len(held))).withdraw()
            case 7 if rng.random() < 0.2:
                pool.reset()
                held.clear()
        for prompt, table in zip(prompts, asking, strict=True):
            if rng.random() < 0.5:
                matched = table.match(prompt)
                assert matched == BlockTable(pool, b"s").match(prompt)
                found += len(matched)
    assert found > 100


def test_what_was_found_stays_what_it_was() -> None:
    """Who holds a hit and looks again has two, of which the first does not grow."""
    pool = BlockPool(8, 4)
    token_ids = array("i", range(13))
    other = BlockTable(pool, b"s")
    other.allocate(13)
    other.publish(token_ids, 4)
    table = BlockTable(pool, b"s")
    before = table.match(token_ids)
    other.publish(token_ids, 12)
    assert table.match(token_ids) == other.block_ids[:3]
    assert before == other.block_ids[:1]


def test_a_table_that_was_given_back_has_published_nothing() -> None:
    """What it takes next, found or not, is published anew."""
    pool = BlockPool(8, 4)
    token_ids = array("i", range(9))
    table = filled_table(pool, token_ids)
    table.free()
    assert table.num_published == 0
    pool.reset()
    table.forget()
    table.allocate(9)
    table.publish(token_ids, 8)
    assert BlockTable(pool, b"s").match(token_ids) == table.block_ids[:2]


def test_only_computed_blocks_are_found() -> None:
    """Blocks that are allocated but not computed to their end are not found."""
    pool = BlockPool(8, 4)
    token_ids = array("i", range(12))
    table = BlockTable(pool, b"s")
    table.allocate(12)
    table.publish(token_ids, 7)
    assert BlockTable(pool, b"s").match(token_ids) == table.block_ids[:1]


def test_growth_is_whole_or_not_at_all() -> None:
    """A table that cannot grow to what is asked takes nothing."""
    pool = BlockPool(2, 4)
    table = BlockTable(pool, b"s")
    assert table.allocate(9) is None
    assert (table.block_ids, pool.num_free) == ([], 2)
    assert table.allocate(8) is not None


def test_caching_off_finds_nothing() -> None:
    """Without caching a table neither publishes nor finds."""
    pool = BlockPool(4, 4)
    token_ids = array("i", range(8))
    table = BlockTable(pool, b"s", caching=False)
    table.allocate(8)
    table.publish(token_ids, 8)
    assert pool.num_cached == 0
    assert BlockTable(pool, b"s", caching=False).match(token_ids) == []


class KvMachine(RuleBasedStateMachine):
    """Random sequences of two tenants come, compute, grow and go; a model keeps the contents."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8, 2)
        self.live: list[tuple[BlockTable, bytes, array[int], list[int]]] = []
        self.content: dict[int, tuple[bytes, tuple[int, ...]]] = {}

    @rule(
        salt=st.sampled_from([b"acme", b"globex"]),
        # Two token ids only, so that prefixes are often shared.
        ids=st.lists(st.integers(0, 1), min_size=1, max_size=10),
        computed=st.integers(0, 10),
    )
    def begin(self, salt: bytes, ids: list[int], computed: int) -> None:
        """Start a sequence as a scheduler does: match, check, take, allocate, compute."""
        token_ids = array("i", ids)
        table = BlockTable(self.pool, salt, owner=salt)
        hit = table.match(token_ids)
        for index, block_id in enumerate(hit):
            assert self.content.get(block_id) == (salt, tuple(ids[: 2 * index + 2])), "a false hit"
        assert 2 * len(hit) < len(ids), "nothing left to compute"
        missing = table.blocks_missing(len(ids)) - len(hit)
        if missing + self.pool.count_idle(hit) > self.pool.num_free:
            return
        table.take(hit)
        new_block_ids = table.allocate(len(ids))
        assert new_block_ids is not None
        self.overwrite(new_block_ids)
        self.live.append((table, salt, token_ids, list(table.block_ids)))
        self.compute(table, salt, token_ids, max(computed, 2 * len(hit)))

    @rule(data=st.data(), token_id=st.integers(0, 1))
    def grow(self, data: st.DataObject, token_id: int) -> None:
        """Append a token to a live sequence and compute all of it."""
        if not self.live:
            return
        index = data.draw(st.integers(0, len(self.live) - 1))
        table, salt, token_ids, _ = self.live[index]
        new_block_ids = table.allocate(len(token_ids) + 1)
        if new_block_ids is None:
            assert self.pool.num_free == 0
            return
        self.overwrite(new_block_ids)
        token_ids.append(token_id)
        self.live[index] = (table, salt, token_ids, list(table.block_ids))
        self.compute(table, salt, token_ids, len(token_ids))

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """Free a live sequence."""
        if self.live:
            table, *_ = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
            table.free()

    @rule()
    def reset(self) -> None:
        """Lose everything, as after an engine's fault: all blocks are back and nothing is found."""
        self.pool.reset()
        self.live.clear()
        self.content.clear()
        assert (self.pool.num_free, self.pool.num_cached) == (8, 0)

    def overwrite(self, block_ids: list[int]) -> None:
        for block_id in block_ids:
            self.content.pop(block_id, None)

    def compute(
        self, table: BlockTable, salt: bytes, token_ids: array[int], num_computed: int
    ) -> None:
        num_computed = min(num_computed, len(token_ids))
        for index in range(table.num_published, num_computed // 2):
            content = (salt, tuple(token_ids[: 2 * index + 2]))
            self.content[table.block_ids[index]] = content
        table.publish(token_ids, num_computed)

    @invariant()
    def free_and_referenced_are_all(self) -> None:
        """Every block is free or referenced, never both."""
        referenced = {b for table, *_ in self.live for b in table.block_ids}
        assert self.pool.num_free + len(referenced) == 8

    @invariant()
    def counts_are_tables(self) -> None:
        """A block's count is the number of tables that hold it, each once."""
        holders = Counter(b for table, *_ in self.live for b in table.block_ids)
        assert [self.pool.ref_count(b) for b in range(8)] == [holders[b] for b in range(8)]

    @invariant()
    def tables_only_grow(self) -> None:
        """A live table is what it was, and nothing of it has moved."""
        for table, _, _, before in self.live:
            assert table.block_ids[: len(before)] == before

    @invariant()
    def sharing_is_of_equal_content(self) -> None:
        """Sequences share a block only under one salt and with equal tokens up to its end."""
        owners: dict[int, set[tuple[bytes, tuple[int, ...]]]] = {}
        for table, salt, token_ids, _ in self.live:
            for index, block_id in enumerate(table.block_ids):
                content = (salt, tuple(token_ids[: 2 * index + 2]))
                owners.setdefault(block_id, set()).add(content)
        assert all(len(contents) == 1 for contents in owners.values())


KvMachine.TestCase.settings = settings(
    max_examples=num_histories(60), stateful_step_count=40, deadline=None
)
TestKvAccounting = pytest.mark.histories(KvMachine.TestCase)
