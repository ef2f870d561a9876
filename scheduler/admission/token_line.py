"""How many tokens wait before a given place of an order.

Requests stand in blocks of a few hundred, sorted by their keys, and each block knows the sum of
its tokens: joining, leaving and asking cost O(√n), done by slices and sums of whole lists.
"""

from __future__ import annotations

from bisect import bisect_left

from scheduler.policies.base import Key

# A policy's key, whether the request never ran, its place in the order of arrival.
Place = tuple[Key, bool, int]

_MAX_BLOCK = 512


class TokenLine:
    """Keep requests of some tokens each in the order of their places, all of them different."""

    __slots__ = ("_places", "_sums", "_tokens", "total")

    def __init__(self) -> None:
        self._places: list[list[Place]] = []
        self._tokens: list[list[int]] = []
        self._sums: list[int] = []
        self.total = 0

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, place: Place, num_tokens: int) -> None:
        """Let a request join."""
        self.total += num_tokens
        if not self._places:
            self._insert_block(0, [place], [num_tokens])
            return
        block = min(self._block_of(place), len(self._places) - 1)
        places, tokens = self._places[block], self._tokens[block]
        at = bisect_left(places, place)
        places.insert(at, place)
        tokens.insert(at, num_tokens)
        self._sums[block] += num_tokens
        if len(places) > _MAX_BLOCK:
            half = len(places) // 2
            self._delete_block(block)
            self._insert_block(block, places[half:], tokens[half:])
            self._insert_block(block, places[:half], tokens[:half])

    def remove(self, place: Place) -> None:
        """Let the request at `place` leave."""
        block = self._block_of(place)
        places = self._places[block]
        at = bisect_left(places, place)
        assert places[at] == place, "only who has joined can leave"
        del places[at]
        num_tokens = self._tokens[block].pop(at)
        self._sums[block] -= num_tokens
        self.total -= num_tokens
        if not places:
            self._delete_block(block)

    def before(self, place: Place) -> int:
        """Sum the tokens of all requests before `place`."""
        block = self._block_of(place)
        if block == len(self._places):
            return self.total
        at = bisect_left(self._places[block], place)
        return sum(self._sums[:block]) + sum(self._tokens[block][:at])

    def _block_of(self, place: Place) -> int:
        """Find the first block whose last place is not before `place`."""
        low, high = 0, len(self._places)
        while low < high:
            middle = (low + high) // 2
            if self._places[middle][-1] < place:
                low = middle + 1
            else:
                high = middle
        return low

    def _insert_block(self, at: int, places: list[Place], tokens: list[int]) -> None:
        self._places.insert(at, places)
        self._tokens.insert(at, tokens)
        self._sums.insert(at, sum(tokens))

    def _delete_block(self, at: int) -> None:
        del self._places[at], self._tokens[at], self._sums[at]
