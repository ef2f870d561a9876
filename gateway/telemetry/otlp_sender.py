"""Posting spans that are encoded already, by OpenTelemetry's own exporter.

The exporter takes the SDK's spans and encodes them itself; what it does after that, by its own
variables (endpoint, headers, certificates, compression, time-out, retries), is all that is wanted
of it, and stands in its client. The package is pinned, and a test posts by this.
"""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter


class OtlpSender(OTLPSpanExporter):
    """Send OTLP's requests; blocks as long as the exporter's time-out."""

    def send(self, encoded: bytes) -> bool:
        """Post a serialised `ExportTraceServiceRequest`; tell whether it was taken."""
        return bool(self._client.export(encoded).success)

    def close(self) -> None:
        self.shutdown()  # type: ignore[no-untyped-call]
