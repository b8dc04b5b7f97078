"""Metrics of the spans and metrics that are sent to a collector.

Each number has one writer, the event loop or the sending thread, so that no lock is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.observe.metrics.metric import (
    MetricDeclaration,
    MetricKind,
    MetricSample,
    MetricSection,
    gauge,
)


@dataclass(slots=True)
class TelemetryCounters:
    """Running totals; all stay 0 if a node sends nothing."""

    spans: int = 0
    """Spans that ended and were queued. Counted by the event loop."""
    spans_dropped: int = 0
    """Spans that were dropped because the queue was full. Counted by the event loop."""
    spans_sent: int = 0
    """Spans that the collector accepted. Counted by the sending thread."""
    spans_lost: int = 0
    """Spans that the collector did not accept. Counted by the sending thread."""
    readings: int = 0
    """Readings of all metrics that were queued. Counted by the event loop."""
    readings_dropped: int = 0
    """Readings that were dropped because the one before was in flight. Counted by the event
    loop.
    """
    readings_sent: int = 0
    readings_lost: int = 0

    @property
    def spans_waiting(self) -> int:
        """Spans that are queued or in flight."""
        return max(0, self.spans - self.spans_sent - self.spans_lost)


TELEMETRY_METRICS: Sequence[MetricDeclaration[TelemetryCounters]] = (
    MetricDeclaration(
        name="millstream_telemetry_spans_total",
        kind=MetricKind.COUNTER,
        help="Spans for the collector: accepted by it (sent), rejected by it (lost), and dropped"
        " because too many waited for it.",
        labels=("outcome",),
        samples=(
            MetricSample(labels=("sent",), read=lambda counters: counters.spans_sent),
            MetricSample(labels=("lost",), read=lambda counters: counters.spans_lost),
            MetricSample(labels=("dropped",), read=lambda counters: counters.spans_dropped),
        ),
    ),
    gauge(
        "millstream_telemetry_waiting_spans",
        "Spans that wait for the collector.",
        lambda counters: counters.spans_waiting,
    ),
    MetricDeclaration(
        name="millstream_telemetry_readings_total",
        kind=MetricKind.COUNTER,
        help="Readings of all metrics for the collector: accepted by it (sent), rejected by it"
        " (lost), and dropped because the one before was still in flight.",
        labels=("outcome",),
        samples=(
            MetricSample(labels=("sent",), read=lambda counters: counters.readings_sent),
            MetricSample(labels=("lost",), read=lambda counters: counters.readings_lost),
            MetricSample(labels=("dropped",), read=lambda counters: counters.readings_dropped),
        ),
    ),
)

TELEMETRY = MetricSection(metrics=TELEMETRY_METRICS)
