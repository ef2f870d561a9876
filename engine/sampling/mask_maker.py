"""A thread that makes the masks of steps while their models run.

It begins with the first step that has a mask, and ends with `close`. A pool of the standard library
does the same, and takes twenty microseconds a step for what is one queue and one lock here.

Failures: what making masks raises is raised where they are taken; the thread goes on.
"""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread

from engine.sampling.constraints import StepMasks


class MaskMaker:
    """Make masks one step after the other; see the module. One thread calls it."""

    def __init__(self) -> None:
        self._begun: SimpleQueue[StepMasks | None] = SimpleQueue()
        self._thread: Thread | None = None

    def begin(self, masks: StepMasks) -> None:
        """Have the masks made; whoever takes them waits for that."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="masks", daemon=True)
            self._thread.start()
        masks.begin()
        self._begun.put(masks)

    def close(self) -> None:
        """Make what was begun, and end the thread."""
        if self._thread is not None:
            self._begun.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (masks := self._begun.get()) is not None:
            masks.make()
