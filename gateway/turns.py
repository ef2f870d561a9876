"""Much work in pieces that are short enough for the event loop to turn between them.

On the loop and not on a thread, where it is many small objects: freeing a list of them holds the
interpreter's lock to its end wherever it is done, and a thread that gives the lock up for
microseconds, as each draw of a random number does, has it back before the loop has woken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

# As many rows as are read, made or written in a few milliseconds.
ROWS: Final = 25


def in_chunks(rows: Sequence[T], num_rows: int = ROWS) -> Iterator[Sequence[T]]:
    """Yield rows in their order, so many at a time."""
    for first in range(0, len(rows), num_rows):
        yield rows[first : first + num_rows]


async def by_turns(items: Iterable[T], num_items: int = ROWS) -> AsyncIterator[T]:
    """Yield items in their order, and let the loop turn after so many."""
    for done, item in enumerate(items, 1):
        yield item
        if done % num_items == 0:
            await asyncio.sleep(0)


async def let_go(items: list[T]) -> None:
    """Empty a list whose items nobody else has, so many a turn of the loop."""
    while items:
        del items[-ROWS:]
        await asyncio.sleep(0)
