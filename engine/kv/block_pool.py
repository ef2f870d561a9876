"""The fixed set of KV blocks: who uses which, which can be found again, which goes next.

Every block is either referenced (its count says by how many tables) or free. A free block may still
carry the hash of its content: it can be found and taken back until it is reused for something else.
Blocks without a hash are reused first, the last that was freed before the others; of the rest
`IdleBlocks` says which, by whom they are of.

Two blocks may come to hold the same content (two sequences computed it side by side). The first
to be published keeps the hash and the other stays nameless, so tables never change underneath
a sequence.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby

from engine.kv.idle_blocks import IdleBlocks


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
        self._num_free -= num_blocks
        num_plain = min(num_blocks, len(self._plain))
        block_ids = [self._plain.pop() for _ in range(num_plain)]
        if num_plain < num_blocks:
            block_ids += self._evict(num_blocks - num_plain)
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids

    def acquire(self, block_ids: Sequence[int]) -> None:
        """Use blocks once more for the content that they hold."""
        idle = []
        for block_id in block_ids:
            num_users = self._ref_counts[block_id]
            if not num_users:
                idle.append(block_id)
            elif num_users == 1:
                self.num_shared += 1
            self._ref_counts[block_id] = num_users + 1
        self._num_free -= len(idle)
        for owner, some in groupby(idle, self._owners.__getitem__):
            self._idle.remove(some, owner)

    def release(self, block_ids: Sequence[int]) -> None:
        """Give back a table's blocks, in the table's order.

        The tail goes first: it is of use only to a request that shares all that is before it.
        """
        idle = []
        for block_id in reversed(block_ids):
            num_users = self._ref_counts[block_id] - 1
            assert num_users >= 0, "a block was freed twice"
            self._ref_counts[block_id] = num_users
            if num_users:
                self.num_shared -= num_users == 1
                continue
            self._num_free += 1
            if self._hashes[block_id] is None:
                self._plain.append(block_id)
            else:
                idle.append(block_id)
        # As a rule all are one owner's.
        for owner, some in groupby(idle, self._owners.__getitem__):
            self._idle.add(some, owner)

    def publish(self, block_id: int, block_hash: bytes, owner: Hashable = None) -> None:
        """Make a referenced block findable; its content must be computed and final.

        `owner` is whose content it is: nobody else may find it.
        """
        assert self._ref_counts[block_id], "only a block in use can be published"
        assert self._hashes[block_id] is None, "a block's content never changes while it is used"
        if block_hash in self._block_of_hash:
            return
        self._block_of_hash[block_hash] = block_id
        self._hashes[block_id] = block_hash
        self._owners[block_id] = owner

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
        self._ref_counts: list[int] = [0] * self.num_blocks
        self._hashes: list[bytes | None] = [None] * self.num_blocks
        # Of those that have a hash.
        self._owners: list[Hashable] = [None] * self.num_blocks
        self._block_of_hash: dict[bytes, int] = {}
        self.num_forgotten += 1
        # Free ones without a hash, the next one last.
        self._plain = list(reversed(range(self.num_blocks)))
        self._idle = IdleBlocks(self.num_blocks)
        self._num_free = self.num_blocks
        self.num_shared = 0

    def _evict(self, num_blocks: int) -> list[int]:
        evicted = self._idle.take(num_blocks)
        for block_id in evicted:
            old_hash = self._hashes[block_id]
            assert old_hash is not None, "only what can be found is idle"
            del self._block_of_hash[old_hash]
            self._hashes[block_id] = None
            self.num_evicted += 1
            # Only now: who sees the new count is to find nothing of what has gone.
            self.num_forgotten += 1
        return evicted
