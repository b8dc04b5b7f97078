"""Converts readings of metrics to OpenTelemetry.

Names and labels are the same as at `/metrics`, so that one page documents both. The instruments of
the SDK are not used: they would aggregate what is already aggregated, keep at most 2,000
combinations of labels of each, and read the numbers from a thread that does not own them.
"""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

import millstream
from millstream.observe.metrics.metric import MetricKind, MetricReading

_UNITS = {"bytes": "By", "seconds": "s"}
"""Units in OpenTelemetry's notation. Others are left out: some readers take a `1` for a ratio."""


def metrics_data(
    readings: Sequence[MetricReading], resource: Resource, *, started_ns: int, now_ns: int
) -> MetricsData:
    """Return all metrics as of `now_ns`, for counters that started at `started_ns`."""
    metrics = [_metric(reading, started_ns, now_ns) for reading in readings if reading.rows]
    scope = InstrumentationScope("millstream", millstream.__version__)
    scoped = ScopeMetrics(scope=scope, metrics=metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource, [scoped], schema_url=resource.schema_url)])


def _metric(reading: MetricReading, started_ns: int, now_ns: int) -> Metric:
    points = [
        NumberDataPoint(
            attributes=dict(zip(reading.labels, values, strict=True)),
            start_time_unix_nano=started_ns,
            time_unix_nano=now_ns,
            value=number,
        )
        for values, number in reading.rows
    ]
    if reading.kind is MetricKind.COUNTER:
        data: Sum | Gauge = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    else:
        data = Gauge(points)
    unit = _UNITS.get(reading.name.removesuffix("_total").rpartition("_")[2], "")
    return Metric(name=reading.name, description=reading.help, unit=unit, data=data)
