"""What heads say of traces: a client's `traceparent`, and ours in the answer.

A trace of ours has its request's id, so either is found by the other. Whoever sends a `traceparent`
gets a link to it in a trace of our own; only tenants that an operator has named (`trusted`) have
their traces continued, as a trace id that clients choose could be another tenant's. Whether a trace
is kept is never theirs to say.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from starlette.types import Scope

from gateway.domain.timeline import Timeline
from gateway.services.requests import in_share
from gateway.telemetry.trace_context import (
    read_traceparent,
    read_tracestate,
    root_span_id,
    traceparent,
)

_HEADER: Final = b"traceparent"
_STATE: Final = b"tracestate"


class TraceHeads:
    """Read and write heads where traces are sent; `share` of all requests is kept in any case."""

    def __init__(self, share: float, trusted: Collection[str] = ()) -> None:
        self._share = share
        self._trusted = frozenset(trusted)

    def read(self, scope: Scope, timeline: Timeline) -> None:
        """Note what a request names as its parent."""
        request_id = timeline.trace_id
        timeline.is_sampled = in_share(request_id, self._share)
        sent = [value for name, value in scope["headers"] if name == _HEADER]
        if sent and (parent := read_traceparent(sent)) is not None:
            timeline.parent = parent

    def settle(self, scope: Scope, timeline: Timeline) -> None:
        """Continue the trace of a tenant that may have it continued, once that is known."""
        parent, principal = timeline.parent, scope["state"].get("principal")
        if parent is None or timeline.is_continued or not _is_trusted(principal, self._trusted):
            return
        timeline.is_continued = True
        timeline.trace_id = parent.trace_id
        timeline.tracestate = read_tracestate(
            value for name, value in scope["headers"] if name == _STATE
        )

    def header(self, timeline: Timeline) -> tuple[bytes, bytes]:
        """Name the server's span in the answer; its flag says what is known by then."""
        span_id = root_span_id(int(timeline.request_id, 16))
        return _HEADER, traceparent(timeline.trace_id, span_id, is_sampled=timeline.is_sampled)


def _is_trusted(principal: Any, trusted: Collection[str]) -> bool:
    return principal is not None and principal.tenant in trusted
