"""`traceparent` and `tracestate` of the W3C, read strictly and written.

What does not follow the letter of https://www.w3.org/TR/trace-context/ is passed over, as if it had
not been sent: a trace that hangs on a made-up parent explains nothing. `baggage` is never read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gateway.domain.timeline import SpanName

_TRACEPARENT: Final = re.compile(
    rb"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-[0-9a-f]{2}"
    rb"(?P<more>-[\x21-\x7e]*)?",
    re.ASCII,
)
_MAX_TRACEPARENT_BYTES: Final = 256
_MAX_TRACESTATE_BYTES: Final = 512
_MAX_MEMBERS: Final = 32
_MEMBER: Final = re.compile(
    rb"[ \t]*[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{1,256}[ \t]*", re.ASCII
)


def read_traceparent(values: Iterable[bytes]) -> SpanName | None:
    """Return the span that a request names; None without one, or with two."""
    sent = list(values)
    if len(sent) != 1 or len(sent[0]) > _MAX_TRACEPARENT_BYTES:
        return None
    found = _TRACEPARENT.fullmatch(sent[0])
    if found is None:
        return None
    version = found["version"]
    if version == b"ff" or (version == b"00" and found["more"] is not None):
        return None
    parent = SpanName(int(found["trace"], 16), int(found["span"], 16))
    return parent if parent.trace_id and parent.span_id else None


def read_tracestate(values: Iterable[bytes]) -> str | None:
    """Return the state that goes with it; None without one, or where it breaks a rule."""
    joined = b",".join(values)
    if not joined or len(joined) > _MAX_TRACESTATE_BYTES:
        return None
    members = [member for member in joined.split(b",") if member.strip(b" \t")]
    if len(members) > _MAX_MEMBERS or not all(map(_MEMBER.fullmatch, members)):
        return None
    return ",".join(member.strip(b" \t").decode("ascii") for member in members) or None


def traceparent(trace_id: int, span_id: int, *, is_sampled: bool) -> bytes:
    """Spell a span of ours."""
    return b"00-%032x-%016x-%02x" % (trace_id, span_id, is_sampled)


def root_span_id(request_id: int) -> int:
    """Name the outermost span of a request, so that whoever knows the request knows the span."""
    return request_id & 0xFFFF_FFFF_FFFF_FFFF or 1
