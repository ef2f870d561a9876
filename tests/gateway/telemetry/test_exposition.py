"""The text that scrapers get says what the client library's own would."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
from prometheus_client.parser import text_string_to_metric_families as read

from gateway.telemetry.exposition import render


def registry() -> CollectorRegistry:
    """Make one metric of each kind, with what is hard to write."""
    made = CollectorRegistry()
    gauge = Gauge("x_ratio", 'A "share" \\ of\nit.', ("name",), registry=made)
    for name, value in (('"q" \\ \n', 1.5), ("+", float("inf")), ("n", float("nan")), ("t", 1e-7)):
        gauge.labels(name).set(value)
    Gauge("empty_bytes", "Nothing.", ("name",), registry=made)
    Counter("y", "A count.", registry=made).inc(3, exemplar={"trace_id": "a1"})
    histogram = Histogram("z_seconds", "A time.", registry=made)
    histogram.observe(0.3, exemplar={"trace_id": "b2"})
    return made


def test_text_reads_as_the_clients() -> None:
    """Names, types, labels and values survive."""
    made = registry()
    ours, kind = render(made.collect())
    assert kind.startswith("text/plain; version=0.0.4")
    expected = generate_latest(made).decode()
    assert repr(list(read(ours.decode()))) == repr(list(read(expected)))


def test_open_metrics_read_as_the_clients() -> None:
    """So do exemplars, in the format that has them."""
    made = registry()
    ours, kind = render(made.collect(), is_open=True)
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    shown, expected = (
        list(read_open(text.decode())) for text in (ours, generate_open_metrics(made))
    )
    assert repr(shown) == repr(expected)
    examples = [s.exemplar.labels for m in shown for s in m.samples if s.exemplar]
    assert examples == [{"trace_id": "a1"}, {"trace_id": "b2"}]
