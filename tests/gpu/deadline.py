"""How long a part may still take."""

from __future__ import annotations

import time


class Deadline:
    """Count down from `seconds`; a part asks before it starts something long."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return self._end_s - time.monotonic()

    @property
    def passed(self) -> bool:
        return self.left_s <= 0
