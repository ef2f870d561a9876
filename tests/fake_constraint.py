"""A constraint that spells out which tokens may come at each place, and then the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.errors import ConstraintFailed


class Spelled:
    """Allow one of `spelled[i]` as output token i, and after them the end alone."""

    is_worn = False
    grown_bytes = 0

    def __init__(self, spelled: Sequence[Sequence[int]], *, end: int, place: int = 0) -> None:
        self.spelled, self.end, self.place = spelled, end, place

    def fill_mask(self, words: NDArray[np.int32], address: int) -> None:
        words[:] = 0
        bits = words.view(np.uint32)
        for token_id in self._next():
            bits[token_id // 32] |= np.uint32(1 << token_id % 32)

    def accept(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if token_id not in self._next():
                raise ConstraintFailed(f"token {token_id} is none of {list(self._next())}")
            self.place += 1

    def copy(self) -> Spelled:
        return Spelled(self.spelled, end=self.end, place=self.place)

    def _next(self) -> Sequence[int]:
        return self.spelled[self.place] if self.place < len(self.spelled) else [self.end]
