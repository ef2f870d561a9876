"""A bounded cache with an age limit, least recently used first out."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class ExpiringCache(Generic[V]):
    """Keep values by digest for `ttl_s` ± `jitter`, at most `max_entries` of them.

    The jitter spreads the reloads of keys that arrived together. Time is an argument.
    """

    def __init__(self, *, max_entries: int, ttl_s: float, jitter: float = 0.0) -> None:
        self._entries: OrderedDict[bytes, tuple[float, V]] = OrderedDict()
        self._max_entries = max_entries
        self._ttl_s = ttl_s
        self._jitter = jitter

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, digest: bytes, now: float) -> V | None:
        entry = self._entries.get(digest)
        if entry is None:
            return None
        until, value = entry
        if now >= until:
            del self._entries[digest]
            return None
        self._entries.move_to_end(digest)
        return value

    def put(self, digest: bytes, value: V, now: float) -> None:
        ttl_s = self._ttl_s * (1 + random.uniform(-self._jitter, self._jitter))
        self._entries[digest] = (now + ttl_s, value)
        self._entries.move_to_end(digest)
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def discard(self, digest: bytes) -> None:
        """Forget one value, if it is there."""
        self._entries.pop(digest, None)

    def drop(self, matches: Callable[[V], bool]) -> None:
        """Forget every value that `matches`; reads the whole cache."""
        for digest in [d for d, (_, value) in self._entries.items() if matches(value)]:
            del self._entries[digest]

    def clear(self) -> None:
        self._entries.clear()
