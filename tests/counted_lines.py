"""Counting what a call costs by the lines it runs, which no busy machine changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def num_lines(work: Callable[[], object]) -> int:
    """Count the lines of Python that `work` runs."""
    counted, before = 0, sys.gettrace()

    def count(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal counted
        counted += event == "line"
        return count

    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return counted
