"""Which of the free blocks that can still be found is reused next: fair between owners.

Were it the one that nobody has used for longest, as for one owner alone, whoever sends the most
prompts would keep the whole cache. So the owner with the most of these blocks gives one up, its
least recently used; who has less than another loses none to it. An owner that was not seen for
as long as it takes to reuse all blocks `KEPT_TURNS` times goes before that, whatever it has.

Counts rise and fall with each request, so the heap has for each owner a number that is never less
than what it has, and learns the number itself only where that comes first: each operation takes a
constant a block, and the logarithm of the number of owners now and then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

# How often all blocks are reused before who was not seen is as good as gone.
KEPT_TURNS: Final = 16
_SPARE_ENTRIES: Final = 64


class _Owner:
    """Hold an owner's blocks, the least recently used first; the heap knows of `num_listed`."""

    __slots__ = ("blocks", "name", "num_listed", "seen_at")

    def __init__(self, name: Hashable) -> None:
        self.name = name
        self.blocks: OrderedDict[int, None] = OrderedDict()
        self.num_listed = 0
        self.seen_at = 0


class IdleBlocks:
    """Keep blocks by owner, and say which goes next."""

    def __init__(self, num_blocks: int) -> None:
        """`num_blocks`: of the whole pool."""
        self._num_remembered = KEPT_TURNS * num_blocks
        # Who was seen last at the end.
        self._owners: OrderedDict[Hashable, _Owner] = OrderedDict()
        self._heap: list[tuple[int, int, _Owner]] = []
        self._num_entries = self._num_taken = 0

    def add(self, block_ids: Iterable[int], name: Hashable) -> None:
        """Keep blocks of an owner, the last of its to go, in this order."""
        owner = self._seen(name)
        owner.blocks.update(dict.fromkeys(block_ids))
        if len(owner.blocks) > owner.num_listed:
            self._list(owner, 2 * len(owner.blocks))

    def remove(self, block_ids: Iterable[int], name: Hashable) -> None:
        """Give blocks out to their owner, who uses what is in them."""
        owner = self._seen(name)
        for block_id in block_ids:
            del owner.blocks[block_id]
        if not owner.blocks:
            self._forget(owner)

    def take(self, number: int) -> list[int]:
        """Give out the blocks that are the least worth keeping."""
        taken: list[int] = []
        while len(taken) < number:
            owner = next(iter(self._owners.values()))
            num_more = 1
            if len(self._owners) == 1:
                num_more = number - len(taken)
            elif self._num_taken - owner.seen_at < self._num_remembered:
                owner = self._largest()
            taken += [owner.blocks.popitem(last=False)[0] for _ in range(num_more)]
            self._num_taken += num_more
            if not owner.blocks:
                self._forget(owner)
        return taken

    def _seen(self, name: Hashable) -> _Owner:
        owner = self._owners.get(name)
        if owner is None:
            owner = self._owners[name] = _Owner(name)
        else:
            self._owners.move_to_end(name)
        owner.seen_at = self._num_taken
        return owner

    def _largest(self) -> _Owner:
        """Find who has the most; of equal ones, who was listed first."""
        while True:
            negated, _, owner = self._heap[0]
            if -negated != owner.num_listed:
                # It has another entry, or nothing any more.
                heappop(self._heap)
            elif owner.num_listed == len(owner.blocks):
                return owner
            else:
                owner.num_listed = len(owner.blocks)
                self._num_entries += 1
                heapreplace(self._heap, (-owner.num_listed, self._num_entries, owner))

    def _list(self, owner: _Owner, number: int) -> None:
        owner.num_listed = number
        self._num_entries += 1
        heappush(self._heap, (-number, self._num_entries, owner))
        if len(self._heap) > 2 * len(self._owners) + _SPARE_ENTRIES:
            # Most are of who has another, or nothing any more.
            self._heap = [one for one in self._heap if -one[0] == one[2].num_listed]
            heapify(self._heap)

    def _forget(self, owner: _Owner) -> None:
        owner.num_listed = 0
        del self._owners[owner.name]
