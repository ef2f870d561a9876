"""Times a step by the device's own clock, and waits for its end."""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Start now; `stop` marks the end in the stream, `wait_s` waits for it.

    On a GPU the time runs from when the device gets here, so it is the step's alone, whatever was
    launched before it.
    """

    def __init__(self, device: torch.device) -> None:
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        if device.type == "cuda":
            # Blocking: a thread that spins would take a core from the web server. torch types the
            # constructor not at all.
            begin, end = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            self._events = begin, end
        self._begun_s = self._ended_s = time.perf_counter()

    def stop(self) -> None:
        """Mark the end."""
        if self._events is not None:
            self._events[1].record()
        self._ended_s = time.perf_counter()

    def wait_s(self) -> float:
        """Wait until all before the end is done; return the time from the begin, in seconds."""
        if self._events is None:
            return self._ended_s - self._begun_s
        begin, end = self._events
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000
