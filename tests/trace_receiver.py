"""An OTLP receiver: a small HTTP server that keeps the spans it is sent, as collectors do."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Receiver:
    """Hold what came: spans, their resource's attributes, requests' headers and bytes."""

    url: str
    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)

    def traces(self) -> dict[bytes, list[Span]]:
        """Return the spans by trace."""
        found: dict[bytes, list[Span]] = {}
        for span in list(self.spans):
            found.setdefault(span.trace_id, []).append(span)
        return found

    def take(self, headers: dict[str, str], body: bytes) -> None:
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        message = ExportTraceServiceRequest.FromString(body)
        self.headers.append(headers)
        self.raw.append(body)
        for one in message.resource_spans:
            self.resources.append({a.key: a.value.string_value for a in one.resource.attributes})
            for scope in one.scope_spans:
                self.spans.extend(scope.spans)


TAKEN = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@contextmanager
def receiving(answer: Sequence[bytes] = (TAKEN,)) -> Iterator[Receiver]:
    """Receive spans while the block runs; each is answered with the bytes of `answer`."""
    receiver: Receiver

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.take(headers | {":path": self.path}, body)
            with suppress(ConnectionError):
                for part in answer:
                    self.wfile.write(part)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def attributes(span: Span) -> dict[str, Any]:
    """Return a span's attributes."""
    return {one.key: _value(one.value) for one in span.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


def seconds(span: Span) -> float:
    return float(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


def faults_of(trace: list[Span]) -> list[str]:
    """Say what is wrong with a trace: an orphan, two roots, phases that do not sum to the whole.

    The children of the root tile it, and so do the engine's spans the one that computes, a choice
    each; within 5 % or a millisecond.
    """
    ids, faults = {span.span_id for span in trace}, []
    roots = [span for span in trace if not span.parent_span_id]
    if len(roots) != 1:
        return [f"{len(roots)} roots"]
    [root] = roots
    faults += [
        f"{span.name} is an orphan"
        for span in trace
        if span.parent_span_id and span.parent_span_id not in ids
    ]
    if len(ids) != len(trace):
        faults.append("a span came twice")
    children = [span for span in trace if span.parent_span_id == root.span_id]
    faults += _gap("the phases", root, children)
    for parent in children:
        below = [span for span in trace if span.parent_span_id == parent.span_id]
        engine = [s for s in below if s.name.startswith(("engine.", "sluice.deliver"))]
        for choice in {attributes(span)["sluice.choice"] for span in engine}:
            faults += _gap(
                f"choice {choice}",
                parent,
                [span for span in engine if attributes(span)["sluice.choice"] == choice],
            )
    return faults


def _gap(what: str, whole: Span, parts: list[Span]) -> list[str]:
    gap_s = abs(seconds(whole) - sum(map(seconds, parts)))
    if gap_s <= max(0.001, 0.05 * seconds(whole)):
        return []
    return [f"{what} of {whole.name} miss {gap_s * 1000:.2f} of {seconds(whole) * 1000:.2f} ms"]
