"""Sending kept requests as traces: a thread of its own, behind a queue that never fills memory.

The event loop appends what is to be kept and goes on. The thread makes spans, encodes and posts
them, a few requests at a time. A receiver that takes nothing, or does not answer, holds up the
thread alone: what then does not fit into the queue is dropped and counted (`num_dropped`). No
tenant may have more than a quarter of the places, less where many have theirs, nor more than a few
a second of what is kept for its own sake: whoever meets its limit a thousand times a second is
shown some of them, and costs no more than that.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from gateway.domain.shared_room import SharedRoom
from gateway.domain.timeline import Timeline
from gateway.telemetry.tenant_rate import TenantRate

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 1024
_OF_TENANT: Final = 4
# What a tenant has kept for its own sake.
_PER_S, _BURST = 5.0, 50.0
# Few at a time: what makes spans shares the interpreter with the event loop.
_BATCH: Final = 64
DELAY_S: Final = 1.0
FLUSH_S: Final = 5.0


class Sends(Protocol):
    """Take what was encoded, or say that it could not; may block as long as its own time-out."""

    def send(self, encoded: Any) -> bool: ...
    def close(self) -> None: ...


class TraceExport:
    """Send the traces of requests that are sampled, as `encode` makes them, and says of how many.

    `add` and the counts belong to the event loop's thread.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[Timeline]], tuple[Any, int]],
        sender: Sends,
        *,
        max_waiting: int = MAX_WAITING,
        delay_s: float = DELAY_S,
    ) -> None:
        self.num_sent = self.num_dropped = self.num_left_out = 0
        self._rate = TenantRate(per_s=_PER_S, burst=_BURST)
        self._encode = encode
        self._sender = sender
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self._waiting: deque[Timeline] = deque()
        self._room = SharedRoom(max_waiting, of_tenant=max(1, max_waiting // _OF_TENANT), least=1)
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    @property
    def num_waiting(self) -> int:
        """Count the requests that are kept and not yet sent."""
        return len(self._waiting)

    def start(self) -> None:
        self._thread.start()

    def add(self, timeline: Timeline) -> None:
        """Take a request that ended; never blocks."""
        timeline.is_kept = self._takes(timeline)
        if not timeline.is_kept:
            # Whoever else keeps the timeline does not keep this.
            timeline.content = None

    def _takes(self, timeline: Timeline) -> bool:
        tenant_id = timeline.tenant_id
        if not timeline.is_sampled:
            return False
        if not timeline.is_drawn and not self._rate.take(tenant_id):
            self.num_left_out += 1
            return False
        with self._lock:
            if not self._room.left(tenant_id):
                self.num_dropped += 1
                return False
            self._waiting.append(timeline)
            self._room.take(tenant_id, 1)
            if len(self._waiting) == _BATCH:
                self._wake.set()
        return True

    def close(self, timeout_s: float = FLUSH_S) -> None:
        """Send what waits, for so long; blocks, and so belongs on another thread than the loop's.

        What is not sent by then is dropped: the process may end.
        """
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)
        self._sender.close()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._wake.wait(self._delay_s)
            self._wake.clear()
            # What was added before the end is still taken below.
            is_last = self._closing.is_set()
            while batch := self._take():
                self._send(batch)
                if self._closing.is_set() and self._has_failed:
                    return

    def _take(self) -> list[Timeline]:
        with self._lock:
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            for timeline in batch:
                self._room.give_back(timeline.tenant_id, 1)
        return batch

    def _send(self, batch: Sequence[Timeline]) -> None:
        num_made, is_sent = 0, False
        try:
            encoded, num_made = self._encode(batch)
            is_sent = not num_made or self._sender.send(encoded)
        except Exception:
            logger.exception("traces could not be sent")
        for timeline in batch:
            timeline.content = None
        num_sent = num_made if is_sent else 0
        self.num_sent += num_sent
        with self._lock:
            self.num_dropped += len(batch) - num_sent
        if num_made and is_sent is self._has_failed:
            # Once as it begins and once as it is over: a receiver may be away for days.
            self._has_failed = not is_sent
            text = "traces are taken again" if is_sent else "no traces are taken: they are dropped"
            logger.warning("%s by the receiver that OTEL_EXPORTER_OTLP_* names", text)
