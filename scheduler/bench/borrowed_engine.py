"""An engine that somebody else owns, lent to what would close it or is to be watched."""

from __future__ import annotations

import time

from engine.contract import Engine, EngineInfo, StepPlan, StepResult


class BorrowedEngine:
    """Pass everything on but `close`; count the CPU time of the calling thread, in seconds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.launch_s = self.collect_s = 0.0

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def launch(self, plan: StepPlan) -> object:
        started_s = time.thread_time()
        handle = self._engine.launch(plan)
        self.launch_s += time.thread_time() - started_s
        return handle

    def collect(self, handle: object) -> StepResult:
        started_s = time.thread_time()
        result = self._engine.collect(handle)
        self.collect_s += time.thread_time() - started_s
        return result

    def reset(self) -> None:
        self._engine.reset()

    def close(self) -> None:
        """Leave it open: its owner closes it."""
