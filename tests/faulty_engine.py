"""An engine that breaks where a test says: in a row, in a step, for want of memory."""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from engine.contract import Engine, EngineInfo, NewSequence, StepPlan, StepResult
from engine.errors import EngineOutOfMemory


class FaultyEngine:
    """Wrap an engine and break its steps by who is in them, by the request's id or `name_of` it.

    `failing_rows`: a request's row fails in its n-th step, counted from 1. `failing_steps`: its
    n-th step raises, in `collect` where `late`, in `launch` otherwise. `max_num_tokens` and
    `max_num_rows`: a larger step finds no memory; nor does any with a request of `too_large`.
    While `gate` is clear, `launch` waits. `num_attempts` are the steps so far, by request;
    `in_failed_step` are the requests that were in a step that raised, but for want of memory.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        late: bool = False,
        name_of: Callable[[NewSequence], str] = lambda new: new.request_id,
    ) -> None:
        self.engine = engine
        self.late = late
        self._name_of = name_of
        self.failing_rows: dict[str, int] = {}
        self.failing_steps: dict[str, int] = {}
        self.too_large: set[str] = set()
        self.max_num_tokens = self.max_num_rows = 1 << 30
        self.failing_reset = False
        self.gate = threading.Event()
        self.gate.set()
        self.plans: list[StepPlan] = []
        self.num_resets = 0
        self.num_attempts: Counter[str] = Counter()
        self.in_failed_step: set[str] = set()
        self._names: dict[int, str] = {}

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    def launch(self, plan: StepPlan) -> object:
        assert self.gate.wait(10), "the test never opened the gate"
        self.plans.append(plan)
        self._names |= {new.slot: self._name_of(new) for new in plan.admitted}
        slots = [*plan.decodes.slots, *(piece.slot for piece in plan.slices)]
        rows = {slot: self._names[slot] for slot in slots}
        self.num_attempts.update(rows.values())
        error = self._find_error(plan, rows)
        if error is not None and not self.late:
            raise error
        failed = {
            slot: "a fault in one row"
            for slot, name in rows.items()
            if self.failing_rows.get(name) == self.num_attempts[name]
        }
        return self.engine.launch(plan), failed, error

    def collect(self, handle: object) -> StepResult:
        assert isinstance(handle, tuple)
        inner, failed, error = handle
        if error is not None:
            raise error
        result = self.engine.collect(inner)
        kept = [i for i, slot in enumerate(result.slots) if slot not in failed]
        return replace(
            result,
            slots=array("i", [result.slots[i] for i in kept]),
            token_ids=array("i", [result.token_ids[i] for i in kept]),
            failed={**result.failed, **failed},
            logprobs=None if result.logprobs is None else [result.logprobs[i] for i in kept],
        )

    def reset(self) -> None:
        if self.failing_reset:
            raise RuntimeError("the reset failed")
        self.num_resets += 1
        self._names.clear()
        self.engine.reset()

    def close(self) -> None:
        self.engine.close()

    def _find_error(self, plan: StepPlan, rows: dict[int, str]) -> Exception | None:
        for name in rows.values():
            if self.failing_steps.get(name) == self.num_attempts[name]:
                self.in_failed_step |= set(rows.values())
                return RuntimeError("a fault in one step")
        too_large = plan.num_tokens > self.max_num_tokens or len(rows) > self.max_num_rows
        if too_large or not self.too_large.isdisjoint(rows.values()):
            return EngineOutOfMemory(f"a step of {plan.num_tokens} tokens found no memory")
        return None
