"""Looking for garbage seldom, and for what is old when there is little to look through.

A few requests at once are some thousand objects, all of which are gone with them. The interpreter
looks at each seven hundred that come; here it waits until a burst is more than that.

A full collection looks at every object that has come since the start, half a microsecond each, and
nothing else runs meanwhile. Left to itself the interpreter does so while there are most of them: a
thousand prompts that one tenant has waiting are a hundred thousand objects, and fifty milliseconds
for all others, again and again. Nearly all of it is let go of without a collection once its
requests have ended. So full ones are done here, at a moment when few objects are there; those of
the interpreter are rare, and a last resort for cycles that pile up while there is no such moment.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import AsyncGenerator
from typing import Final

from gateway.background import Background

_EVERY_S: Final = 1.0
# So many are looked through in ten milliseconds.
_FEW: Final = 20_000
# So many are new: 0.2 ms if they are all there still. Every other time those of before are looked
# through as well.
_YOUNG: Final = 10_000
_YOUNGER: Final = 1
# Of these, so many between two full ones: for one at a good moment, and for one at any.
_DUE: Final = 3
_OVERDUE: Final = 30


class FullCollections:
    """Collect old garbage in a round at which there are at most `few` objects."""

    def __init__(self, few: int = _FEW) -> None:
        self._few = few
        self._num_passed = 0

    async def look(self) -> None:
        """Collect if that is due and quickly done; counting too many takes a while, so not soon."""
        if self._num_passed:
            self._num_passed -= 1
        elif gc.get_count()[2] >= _DUE:
            num_objects = len(gc.get_objects())
            if num_objects <= self._few:
                gc.collect()
            else:
                self._num_passed = num_objects // self._few


@contextlib.asynccontextmanager
async def full_collections() -> AsyncGenerator[None]:
    """Have full collections done at good moments while the block runs."""
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, _YOUNGER, _OVERDUE)
    try:
        async with Background("full collections", FullCollections().look, interval_s=_EVERY_S):
            yield
    finally:
        gc.set_threshold(*before)
