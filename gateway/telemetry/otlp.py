"""OpenTelemetry's own exporter, set up by its own variables as anywhere.

`OTEL_EXPORTER_OTLP_*`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SDK_DISABLED` and
`OTEL_TRACES_EXPORTER` mean here what the specification says, but that nothing is sent anywhere
until an endpoint, or the exporter, is named. It speaks HTTP with protobuf.
https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from gateway.telemetry.trace_export import TraceExport

logger = logging.getLogger(__name__)

_SERVICE: Final = "sluice"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HTTP: Final = "http/protobuf"


def sends_traces(environment: Mapping[str, str]) -> bool:
    """Tell whether the environment says where traces go."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporters = environment.get("OTEL_TRACES_EXPORTER", "").strip()
    if exporters and "otlp" not in exporters.split(","):
        if exporters != "none":
            logger.warning("OTEL_TRACES_EXPORTER: only otlp and none are known: no traces")
        return False
    if not exporters and not any(environment.get(name) for name in _ENDPOINTS):
        return False
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), _HTTP)
    if protocol != _HTTP:
        logger.warning("OTEL_EXPORTER_OTLP_PROTOCOL: only %s is spoken: no traces", _HTTP)
        return False
    return True


def open_traces(version: str, environment: Mapping[str, str]) -> TraceExport:
    """Begin to send traces to where the environment says; close it at the end."""
    # Loaded by whoever sends traces alone: they take a fifth of a second.
    from opentelemetry.sdk.resources import Resource

    from gateway.telemetry.otlp_sender import OtlpSender
    from gateway.telemetry.spans import SpanMaker

    # It has a line for each try; ours are two for each outage.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    attributes = {"service.version": version}
    named = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not environment.get("OTEL_SERVICE_NAME") and "service.name=" not in named:
        attributes["service.name"] = _SERVICE
    maker = SpanMaker(Resource.create(attributes).attributes)
    export = TraceExport(maker.encode, OtlpSender())
    export.start()
    return export
