"""Posting spans that are encoded already, by OpenTelemetry's own exporter.

The exporter takes the SDK's spans and encodes them itself; what it does after that, by its own
variables (endpoint, headers, certificates, compression, time-out, retries), is all that is wanted
of it, and stands in its client. The package is pinned, and a test posts by this.

The client would read an answer to its end, however long that is, and its time-out begins anew with
each byte; so the status is taken, and what does not come with it is left unread. It would also
take a receiver that names another address for one that took them, though it follows none.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

# An answer says nothing, or which spans were not good.
_ANSWER_BYTES: Final = 1 << 16


class OtlpSender(OTLPSpanExporter):
    """Send OTLP's requests; blocks as long as the exporter's time-out."""

    def __init__(self) -> None:
        super().__init__()
        # Given one of ours, it would not ask for that of a credential provider, which its variables
        # may name; its own stands in what is private.
        session = self._client._transport._session  # type: ignore[attr-defined]
        session.stream = True
        session.hooks["response"].append(_let_go)

    def send(self, encoded: bytes) -> bool:
        """Post a serialised `ExportTraceServiceRequest`; tell whether it was taken."""
        result = self._client.export(encoded)
        return result.success and (result.status_code or 0) < 300

    def close(self) -> None:
        self.shutdown()  # type: ignore[no-untyped-call]


def _let_go(response: Any, **_: Any) -> None:
    """Read what has come with an answer's head: a connection is kept whose answer ends there."""
    with suppress(Exception):
        response.raw.read1(_ANSWER_BYTES, decode_content=False)
        # One that has ended is back among those that are kept.
    response.close()
