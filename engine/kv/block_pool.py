"""The fixed set of KV blocks: who uses which, which can be found again, which goes next.

Every block is either referenced (its count says by how many tables) or on the free list. A free
block may still carry the hash of its content: it can be found and taken back until it is reused
for something else. The free list is doubly linked through two arrays with a sentinel, so each
operation is O(1) a block: blocks without a hash join at the front and are reused first, blocks
with one join at the back, which makes the order of the rest least recently used first.

Two blocks may come to hold the same content (two sequences computed it side by side). The first
to be published keeps the hash and the other stays nameless, so tables never change underneath
a sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress


class BlockPool:
    """Count references to `num_blocks` blocks of `block_size` tokens and lend them out.

    `num_shared` blocks are used by more than one table now; `num_evicted` is how often a block was
    reused while it could be found, so that its content was forgotten. `num_forgotten` counts
    whatever could not be found any more: while it stays, what was found is what would be.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks > 0
        assert block_size > 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_evicted = self.num_forgotten = 0
        self.reset()

    @property
    def num_free(self) -> int:
        """Count the blocks that no table uses, findable ones included."""
        return self._num_free

    @property
    def num_cached(self) -> int:
        """Count the blocks that a hash finds, in use or free."""
        return len(self._block_of_hash)

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def count_idle(self, block_ids: Iterable[int]) -> int:
        """Count those of `block_ids` that are free: taking them lowers `num_free` by as much."""
        return sum(not self._ref_counts[block_id] for block_id in block_ids)

    def count_sole(self, block_ids: Iterable[int]) -> int:
        """Count those of `block_ids` that one table alone uses: freeing it raises `num_free`."""
        return sum(self._ref_counts[block_id] == 1 for block_id in block_ids)

    def lookup(self, block_hash: bytes) -> int | None:
        """Find the block that holds the content named by `block_hash`."""
        return self._block_of_hash.get(block_hash)

    def find_run(self, block_hashes: Sequence[bytes]) -> list[int]:
        """Find the blocks of leading hashes, up to the first that none holds.

        Any thread may, without a lock, if it looks at `num_forgotten` before, and whoever uses the
        blocks looks at it again.
        """
        found: list[int] = []
        # At once: a loop of one after the other takes longer, and there may be thousands.
        with suppress(KeyError):
            found.extend(map(self._block_of_hash.__getitem__, block_hashes))
        return found

    def allocate_one(self) -> int:
        """Take the free block that is the least worth keeping; its old content is forgotten."""
        return self.allocate(1)[0]

    def allocate(self, num_blocks: int) -> list[int]:
        """Take `num_blocks` free blocks for new content."""
        assert num_blocks <= self._num_free, "the caller checks num_free first"
        block_ids = []
        block_id = self._next[self.num_blocks]
        for _ in range(num_blocks):
            block_ids.append(block_id)
            self._ref_counts[block_id] = 1
            old_hash = self._hashes[block_id]
            if old_hash is not None:
                del self._block_of_hash[old_hash]
                self._hashes[block_id] = None
                self.num_evicted += 1
                # Only now: who sees the new count is to find nothing of what has gone.
                self.num_forgotten += 1
            block_id = self._next[block_id]
        # They were the first of the list, which begins behind them now.
        self._next[self.num_blocks] = block_id
        self._previous[block_id] = self.num_blocks
        self._num_free -= num_blocks
        return block_ids

    def acquire(self, block_ids: Sequence[int]) -> None:
        """Use blocks once more for the content that they hold."""
        for block_id in block_ids:
            num_users = self._ref_counts[block_id]
            if not num_users:
                self._unlink(block_id)
            elif num_users == 1:
                self.num_shared += 1
            self._ref_counts[block_id] = num_users + 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Give back a table's blocks, in the table's order.

        The tail goes first: it is of use only to a request that shares all that is before it.
        """
        for block_id in reversed(block_ids):
            num_users = self._ref_counts[block_id] - 1
            assert num_users >= 0, "a block was freed twice"
            self._ref_counts[block_id] = num_users
            if not num_users:
                self._link(block_id)
            elif num_users == 1:
                self.num_shared -= 1

    def publish(self, block_id: int, block_hash: bytes) -> None:
        """Make a referenced block findable; its content must be computed and final."""
        assert self._ref_counts[block_id], "only a block in use can be published"
        assert self._hashes[block_id] is None, "a block's content never changes while it is used"
        if block_hash in self._block_of_hash:
            return
        self._block_of_hash[block_hash] = block_id
        self._hashes[block_id] = block_hash

    def withdraw(self, block_ids: Iterable[int]) -> None:
        """Let blocks that are in use be found no more; who uses them goes on."""
        for block_id in block_ids:
            assert self._ref_counts[block_id], "only a block in use is withdrawn"
            block_hash = self._hashes[block_id]
            if block_hash is not None:
                del self._block_of_hash[block_hash]
                self._hashes[block_id] = None
                self.num_forgotten += 1

    def reset(self) -> None:
        """Forget all references and all content; every table made before is void."""
        sentinel = self.num_blocks
        self._ref_counts: list[int] = [0] * self.num_blocks
        self._hashes: list[bytes | None] = [None] * self.num_blocks
        self._block_of_hash: dict[bytes, int] = {}
        self.num_forgotten += 1
        self._next: list[int] = [*range(1, self.num_blocks + 1), 0]
        self._previous: list[int] = [sentinel, *range(self.num_blocks)]
        self._num_free = self.num_blocks
        self.num_shared = 0

    def _unlink(self, block_id: int) -> None:
        before, after = self._previous[block_id], self._next[block_id]
        self._next[before] = after
        self._previous[after] = before
        self._num_free -= 1

    def _link(self, block_id: int) -> None:
        sentinel = self.num_blocks
        if self._hashes[block_id] is None:
            before, after = sentinel, self._next[sentinel]
        else:
            before, after = self._previous[sentinel], sentinel
        self._next[before] = self._previous[after] = block_id
        self._previous[block_id] = before
        self._next[block_id] = after
        self._num_free += 1
