"""Lists in pieces that hold still: a piece goes on after the last row of the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

# Where a piece ended: what its last row was ordered by. Opaque above the store.
Cursor = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Ask for at most `limit` rows, from the first, or those after a row."""

    limit: int = 100
    after: Cursor | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Hold a piece of a list; `next` asks for the one after it, None where there is none."""

    data: Sequence[T]
    next: Cursor | None = None
