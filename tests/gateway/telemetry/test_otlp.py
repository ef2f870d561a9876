"""Where traces go, by OpenTelemetry's own variables."""

from __future__ import annotations

import pytest

from gateway.telemetry.otlp import open_traces, sends_traces
from tests.gateway.telemetry.test_trace_export import over
from tests.trace_receiver import receiving

HERE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    ("environment", "sends"),
    [
        ({}, False),
        (HERE, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (HERE | {"OTEL_SDK_DISABLED": "True"}, False),
        (HERE | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (HERE | {"OTEL_TRACES_EXPORTER": "zipkin"}, False),
        (HERE | {"OTEL_TRACES_EXPORTER": "console,otlp"}, True),
        (HERE | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
        (HERE | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, False),
    ],
)
def test_traces_are_sent_where_the_environment_says(
    environment: dict[str, str], sends: bool
) -> None:
    """Nothing is sent by default, and every way of turning it off holds."""
    assert sends_traces(environment) is sends


def test_the_standard_variables_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers, compression, the service's name and its resource are as the environment has them."""
    with receiving() as receiver:
        environment = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{receiver.url}/of/ours",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-team=infra",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_SERVICE_NAME": "front",
            "OTEL_RESOURCE_ATTRIBUTES": "service.namespace=llm",
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        traces = open_traces("1.2", environment)
        traces.add(over())
        traces.close()
    [headers] = receiver.headers
    assert (headers[":path"], headers["x-team"]) == ("/of/ours", "infra")
    assert headers["content-encoding"] == "gzip"
    [resource] = receiver.resources
    assert (resource["service.name"], resource["service.namespace"]) == ("front", "llm")
    assert resource["service.version"] == "1.2"
