"""The blocks of one sequence, in the order of its tokens."""

from __future__ import annotations

from array import array
from collections.abc import Hashable

from engine.kv.block_pool import BlockPool
from engine.kv.prefix import extend_chain, root_hash


class BlockTable:
    """Map a sequence's tokens to blocks; it only grows until it is freed.

    The names of its full blocks outlive `free`, since tokens are never changed: a sequence that
    comes back finds its own blocks without hashing again. What was found is remembered for as long
    as the pool has forgotten nothing. With `caching` off nothing is found and nothing is published.
    What is published is the `owner`'s, who has a part of what can be found.
    """

    __slots__ = (
        "_caching",
        "_chain",
        "_found",
        "_found_as_of",
        "_num_published",
        "_owner",
        "_pool",
        "_root",
        "block_ids",
    )

    def __init__(
        self, pool: BlockPool, salt: bytes, *, caching: bool = True, owner: Hashable = None
    ) -> None:
        self.block_ids: list[int] = []
        self._pool = pool
        self._owner = owner
        self._caching = caching
        self._root = root_hash(salt) if caching else b""
        self._chain: list[bytes] = []
        self._num_published = 0
        self._found: list[int] = []
        self._found_as_of = 0

    @property
    def num_published(self) -> int:
        """Count the leading blocks that were found or published, whoever holds their hash."""
        return self._num_published

    def name_blocks(self, token_ids: array[int]) -> None:
        """Hash the full blocks of `token_ids`, so that `match` need not; the pool is not used."""
        if self._caching:
            extend_chain(self._chain, self._root, token_ids, block_size=self._pool.block_size)

    def match(self, token_ids: array[int]) -> list[int]:
        """Find the computed blocks that start `token_ids`; nothing is taken yet.

        At least the last token is left to compute, since its logits are wanted. Any thread may,
        without a lock, while no other knows the table; who asks again has then little to look up.
        """
        if not self._caching:
            return []
        self.name_blocks(token_ids)
        num_most = (len(token_ids) - 1) // self._pool.block_size
        as_of = self._pool.num_forgotten
        if as_of != self._found_as_of:
            self._found, self._found_as_of = [], as_of
        found = self._found
        found += self._pool.find_run(self._chain[len(found) : num_most])
        return found[:num_most]

    def count_found(self, token_ids: array[int]) -> int:
        """Count the leading tokens whose computed blocks `match` would find now."""
        return len(self.match(token_ids)) * self._pool.block_size

    def block_names(self, num_tokens: int) -> list[bytes]:
        """Name the full blocks of the first `num_tokens` tokens, as far as `match` has looked."""
        return self._chain[: num_tokens // self._pool.block_size]

    def blocks_missing(self, num_tokens: int) -> int:
        """Count the blocks that holding `num_tokens` tokens would add."""
        return -(-num_tokens // self._pool.block_size) - len(self.block_ids)

    def take(self, block_ids: list[int]) -> None:
        """Start the table with what `match` has just found."""
        assert not self.block_ids, "a hit starts a table, it never changes one"
        self._pool.acquire(block_ids)
        self.block_ids.extend(block_ids)
        self._num_published = len(block_ids)
        # It would be as true later, and thousands of rows would hold it meanwhile.
        self._found = []

    def allocate(self, num_tokens: int) -> list[int] | None:
        """Grow to hold `num_tokens` tokens, wholly or not at all.

        Returns: the new blocks, or None where the pool has too few.
        """
        missing = self.blocks_missing(num_tokens)
        if missing > self._pool.num_free:
            return None
        new_block_ids = self._pool.allocate(max(0, missing))
        self.block_ids.extend(new_block_ids)
        return new_block_ids

    def append_block(self) -> int:
        """Grow by one block; the caller knows that the pool has one."""
        block_id = self._pool.allocate_one()
        self.block_ids.append(block_id)
        return block_id

    def publish(self, token_ids: array[int], num_computed: int) -> None:
        """Make the full blocks among the first `num_computed` tokens findable by others."""
        num_full = num_computed // self._pool.block_size
        if not self._caching or num_full <= self._num_published:
            return
        extend_chain(self._chain, self._root, token_ids, block_size=self._pool.block_size)
        for index in range(self._num_published, num_full):
            self._pool.publish(self.block_ids[index], self._chain[index], self._owner)
        self._num_published = num_full

    def free(self) -> None:
        """Give all blocks back; published ones stay findable until they are reused."""
        self._pool.release(self.block_ids)
        self.forget()

    def withdraw(self) -> None:
        """Give all blocks back, and let no other sequence find what is in them."""
        self._pool.withdraw(self.block_ids)
        self.free()

    def forget(self) -> None:
        """Drop the blocks after the pool was reset."""
        self.block_ids = []
        self._num_published = 0
