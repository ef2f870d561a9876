"""What a process supervisor and a load balancer ask: is it alive, is it ready, has it started.

Liveness knows no dependency, as a restart mends none of them: the event loop turns, and a step
of an engine that has work came back within a minute. Readiness is withdrawn when this process
cannot serve a request, whoever's fault that is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.services.health.heartbeat import Heartbeat
from gateway.services.health.lifecycle import Lifecycle, Phase
from gateway.services.health.overload import Level
from gateway.services.health.overload_watch import OverloadWatch
from gateway.services.health.store_watch import StoreWatch
from gateway.services.inference import ServedModel

ENGINE_STALL_S: Final = 60.0
# What is finished after this must still be billed.
SPOOL_FULL: Final = 0.8


@dataclass(frozen=True, slots=True)
class Part:
    """Say how one part is. `name` is the public word; `for_s` times what `detail` says."""

    name: str
    ok: bool
    detail: str
    for_s: float | None = None


class Probes:
    """Judge the parts of a process. What is not attached yet is not judged."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        heartbeat: Heartbeat,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lifecycle = lifecycle
        self._heartbeat = heartbeat
        self._clock = clock
        self._models: tuple[ServedModel, ...] = ()
        self._store: StoreWatch | None = None
        self._overload: OverloadWatch | None = None
        self._spool_fill: Callable[[], float] | None = None

    def attach(self, models: Iterable[ServedModel], store: StoreWatch | None) -> None:
        """Take in what the start has made. `clock` must be that of the models' services."""
        self._models = tuple(models)
        self._store = store

    def watch_overload(self, overload: OverloadWatch) -> None:
        """Withdraw readiness while nothing is read because of overload."""
        self._overload = overload

    def watch_spool(self, fill: Callable[[], float]) -> None:
        """Withdraw readiness while usage that waits for the ledger fills its room, from 0 to 1."""
        self._spool_fill = fill

    def live(self) -> Sequence[Part]:
        """Judge what a restart would mend."""
        age_s = self._heartbeat.age_s
        loop = Part("loop", self._heartbeat.alive, "since its last turn", round(age_s, 1))
        return [loop, *map(self._progress, self._models)]

    def ready(self) -> Sequence[Part]:
        """Judge whether a request could be served."""
        phase = self.lifecycle.phase
        parts = [Part(phase.word, phase is Phase.SERVING, "the phase", round(self.lifecycle.for_s))]
        for model in self._models:
            serves = model.service.ready
            said = "serves" if serves else "does not serve"
            parts.append(Part("engine", serves, f"{self._whose(model)}{said}"))
        if self._store is not None:
            silent_s = round(self._store.silent_s, 1)
            parts.append(Part("store", self._store.answers, "since its last answer", silent_s))
        if self._spool_fill is not None:
            fill = self._spool_fill()
            parts.append(Part("spool", fill < SPOOL_FULL, f"{fill:.0%} full"))
        if self._overload is not None:
            level = self._overload.level
            cause = f", {self._overload.cause}" if self._overload.cause else ""
            calm = level is not Level.SATURATED
            parts.append(Part("overload", calm, f"{level.name.lower()}{cause}"))
        return parts

    def started(self) -> Sequence[Part]:
        """Judge the start, part by part in the order that they began."""
        now = self._clock()
        parts = [
            Part(
                step.name,
                step.ended_s is not None,
                "is waited for" if step.ended_s is None else "took",
                round((now if step.ended_s is None else step.ended_s) - step.begun_s, 1),
            )
            for step in self.lifecycle.steps
        ]
        waits_for = self.lifecycle.waits_for
        if waits_for is not None and all(part.ok for part in parts):
            parts.append(Part(waits_for, False, "is waited for"))
        return parts

    def _progress(self, model: ServedModel) -> Part:
        stalled_s = max(0.0, self._clock() - model.service.last_progress_s)
        alive = stalled_s < ENGINE_STALL_S
        detail = f"{self._whose(model)}since its last step, if it has work"
        return Part("engine", alive, detail, round(stalled_s, 1))

    def _whose(self, model: ServedModel) -> str:
        """Name an engine's model where there are several: to administrators alone."""
        return f"{model.name}: " if len(self._models) > 1 else ""
