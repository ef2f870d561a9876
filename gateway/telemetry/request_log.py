"""One line a request: who asked, what it took, how it ended and why.

A line is made of a `Timeline`, which holds nothing that a tenant sent: nothing has to be scrubbed.
The event loop appends; a thread makes lines and writes them, so that a log that is not read holds
nobody up: what then does not fit is dropped, and the next line says how many. A tenant has a
quarter of the places, less where many have theirs: a log that is read slowly has lines of all.

Who has no key gets a line only where that was an error, and of what is refused a tenant has some
lines a second, all who have no key together one: they are refused cheaply, and may not fill a disk.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final, Literal, TextIO
from uuid import UUID

import msgspec

from gateway.domain.shared_room import SharedRoom
from gateway.domain.timeline import Timeline
from gateway.telemetry.tenant_rate import TenantRate

MAX_WAITING: Final = 8192
_OF_TENANT: Final = 4
_DELAY_S: Final = 0.2
_FLUSH_S: Final = 2.0
_REFUSED_PER_S, _REFUSED_BURST = 10.0, 100.0
_STRANGERS_PER_S, _STRANGERS_BURST = 1.0, 50.0
_AT_ONCE: Final = 256

_encode: Final = msgspec.json.Encoder().encode


class RequestLog:
    """Write a line for each request that ended; `cause` says what made one slow, if anything.

    `stream` None is standard error, as it is when a line is written.
    """

    def __init__(
        self,
        form: Literal["human", "json"],
        *,
        cause: Callable[[Timeline], str] = lambda timeline: "",
        has_traces: bool = False,
        stream: TextIO | None = None,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self.num_dropped = 0
        self._spell = _json_line if form == "json" else _human_line
        self._cause = cause
        self._has_traces = has_traces
        self._stream = stream
        self._refused = TenantRate(per_s=_REFUSED_PER_S, burst=_REFUSED_BURST)
        self._strangers = TenantRate(per_s=_STRANGERS_PER_S, burst=_STRANGERS_BURST)
        self._lock = threading.Lock()
        self._waiting: deque[Timeline] = deque()
        self._room = SharedRoom(max_waiting, of_tenant=max(1, max_waiting // _OF_TENANT), least=1)
        self._num_left_out = 0
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, timeline: Timeline) -> None:
        """Take a request that ended; never blocks."""
        is_refused = timeline.status >= 400 and not timeline.output_tokens
        if timeline.tenant_id is None and not is_refused:
            return
        rate = self._strangers if timeline.tenant_id is None else self._refused
        if is_refused and not rate.take(timeline.tenant_id):
            self._num_left_out += 1
            return
        with self._lock:
            if not self._room.left(timeline.tenant_id):
                self.num_dropped += 1
                self._num_left_out += 1
                return
            self._waiting.append(timeline)
            self._room.take(timeline.tenant_id, 1)

    def close(self, timeout_s: float = _FLUSH_S) -> None:
        """Write what waits, for so long."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._wake.wait(_DELAY_S)
            is_last = self._is_closing
            while batch := self._take():
                self._write(batch)

    def _take(self) -> list[Timeline]:
        with self._lock:
            batch = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
            for timeline in batch:
                self._room.give_back(timeline.tenant_id, 1)
        return batch

    def _write(self, timelines: Iterable[Timeline]) -> None:
        lines = []
        for timeline in timelines:
            line = request_line(timeline, has_trace=self._has_traces)
            line.cause = self._cause(timeline)
            if self._num_left_out:
                # Another may be left out meanwhile: it is told of a line later, or not at all.
                line.left_out, self._num_left_out = self._num_left_out, 0
            lines.append(self._spell(line))
        stream = self._stream or sys.stderr
        try:
            stream.write("".join(lines))
            stream.flush()
        except (OSError, ValueError):
            # Nobody reads it any more.
            self.num_dropped += len(lines)


class RequestLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Hold what a line says; what is empty has its default, and is left out."""

    at: str
    level: str
    event: str
    request_id: str
    trace_id: str = ""
    status: int
    method: str = ""
    route: str = ""
    batch_id: UUID | None = None
    tenant_id: UUID | None = None
    key_id: UUID | None = None
    tier: str = ""
    model: str = ""
    stream: bool = False
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    took_ms: float
    ttft_ms: float | None = None
    queued_ms: float | None = None
    stalled_ms: float | None = None
    preemptions: int = 0
    outcome: str = ""
    code: str = ""
    limit: str = ""
    degraded: bool = False
    cause: str = ""
    left_out: int = 0


def request_line(timeline: Timeline, *, has_trace: bool = False) -> RequestLine:
    """Return what a line says."""
    ended_s = timeline.ended_s
    assert ended_s is not None
    first_s, facts = timeline.first_token_s, timeline.facts
    ended_at = datetime.fromtimestamp(
        timeline.began_ns / 1e9 + ended_s - timeline.began_s, UTC
    ).isoformat(timespec="milliseconds")
    waited_s = max(((one.admitted_s or one.ended_s) - one.queued_s for one in facts), default=0.0)
    return RequestLine(
        at=ended_at.replace("+00:00", "Z"),
        level="error" if timeline.status >= 500 else "info",
        event="request",
        request_id=f"req_{timeline.request_id}",
        trace_id=f"{timeline.trace_id:032x}" if has_trace else "",
        status=timeline.status,
        method=timeline.method,
        route=timeline.route,
        batch_id=timeline.batch_id,
        tenant_id=timeline.tenant_id,
        key_id=timeline.key_id,
        tier=timeline.tier,
        model=timeline.model,
        stream=timeline.is_stream,
        input_tokens=timeline.input_tokens,
        cached_tokens=timeline.cached_tokens,
        output_tokens=timeline.output_tokens,
        took_ms=_ms(ended_s - timeline.began_s),
        ttft_ms=None if first_s is None else _ms(first_s - timeline.began_s) or None,
        queued_ms=_ms(waited_s) or None,
        stalled_ms=_ms(timeline.stall_s) or None,
        preemptions=sum(len(one.preemptions) for one in facts),
        outcome=timeline.outcome,
        code=timeline.code,
        limit=timeline.limit,
        degraded=timeline.is_degraded,
    )


def _json_line(line: RequestLine) -> str:
    return _encode(line).decode() + "\n"


# The level is what the status says.
_APART: Final = frozenset({"at", "status", "request_id", "level", "event", "method", "route"})


def _human_line(line: RequestLine) -> str:
    what = f"{line.method or 'ITEM'} {line.route or '?'}"
    said = msgspec.to_builtins(line).items()
    rest = " ".join(f"{name}={_shown(value)}" for name, value in said if name not in _APART)
    return f"{line.at} {line.status:03} {what} {line.request_id} {rest}\n"


def _shown(value: object) -> str:
    return "yes" if value is True else str(value)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
