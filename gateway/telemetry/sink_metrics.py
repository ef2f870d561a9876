"""What became of traces and of lines of the log, whose loss nobody else would notice."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from gateway.telemetry import families
from gateway.telemetry.request_log import RequestLog
from gateway.telemetry.series import metric_of
from gateway.telemetry.trace_export import TraceExport


class SinkMetrics:
    """Show what went where; None where nothing is sent or logged."""

    def __init__(self, traces: TraceExport | None, log: RequestLog | None) -> None:
        self._traces = traces
        self._log = log

    def collect(self) -> Iterator[Metric]:
        """Yield both, from any thread."""
        traces, log = self._traces, self._log
        numbers: dict[str, int] = {}
        if traces is not None:
            numbers = {
                "sent": traces.num_sent,
                "dropped": traces.num_dropped,
                "left_out": traces.num_left_out,
            }
        yield metric_of(families.TRACES, [((what,), number) for what, number in numbers.items()])
        yield metric_of(families.LOG_DROPPED, [((), log.num_dropped)] if log is not None else [])
