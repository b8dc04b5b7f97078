"""Exporters of the SDK: they encode telemetry as OTLP, and send it over HTTP or gRPC.

Only the one that is configured is imported. gRPC needs the extra `otel-grpc`; without it, these
functions raise `ModuleNotFoundError`.
"""

from __future__ import annotations

from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace.export import SpanExporter

from millstream.config.schema import TelemetryConfig, TelemetryProtocol

POINTS_PER_REQUEST_MAX = 10_000
"""Numbers in one request: some megabytes. A node with a thousand partitions sends five such
requests. A collector takes 4 MB at most over gRPC by default: what is larger it refuses as a whole.
"""

GRPC_POINTS_PER_REQUEST_MAX = 4_000
"""Below that limit with the longest labels that a node has: some 300 bytes for a number."""


def make_span_exporter(config: TelemetryConfig) -> SpanExporter:
    """Return an exporter of spans. It connects when it has something to send."""
    if config.protocol is TelemetryProtocol.GRPC:
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc  # noqa: PLC0415

        return grpc.OTLPSpanExporter(endpoint=config.endpoint)
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as http  # noqa: PLC0415

    return http.OTLPSpanExporter(endpoint=endpoint_of(config, "traces"))


def make_metric_exporter(config: TelemetryConfig) -> MetricExporter:
    """Return an exporter of metrics. It connects when it has something to send."""
    if config.protocol is TelemetryProtocol.GRPC:
        from opentelemetry.exporter.otlp.proto.grpc import metric_exporter as grpc  # noqa: PLC0415

        return grpc.OTLPMetricExporter(
            endpoint=config.endpoint, max_export_batch_size=GRPC_POINTS_PER_REQUEST_MAX
        )
    from opentelemetry.exporter.otlp.proto.http import metric_exporter as http  # noqa: PLC0415

    return http.OTLPMetricExporter(
        endpoint=endpoint_of(config, "metrics"), max_export_batch_size=POINTS_PER_REQUEST_MAX
    )


def endpoint_of(config: TelemetryConfig, signal: str) -> str | None:
    """Return the URL for one signal; `None` leaves it to the SDK, which reads it from variables."""
    return None if config.endpoint is None else f"{config.endpoint.rstrip('/')}/v1/{signal}"
