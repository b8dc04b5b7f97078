"""What becomes of spans and metrics that go to a collector, as Prometheus reads it.

Each number has one writer, the event loop or the thread that sends, so that nobody needs a lock.
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
    """Running totals; all stay 0 where a node sends nothing."""

    spans: int = 0
    """Spans that ended and were taken for sending. Counted by the event loop."""
    spans_dropped: int = 0
    """Spans for which there was no room. Counted by the event loop."""
    spans_sent: int = 0
    """Spans that the collector took. Counted by the thread that sends."""
    spans_lost: int = 0
    """Spans that it did not take. Counted by the thread that sends."""
    readings: int = 0
    """Readings of all metrics that were taken for sending. Counted by the event loop."""
    readings_dropped: int = 0
    """Those for which the one before was still under way. Counted by the event loop."""
    readings_sent: int = 0
    readings_lost: int = 0

    @property
    def spans_waiting(self) -> int:
        """Spans that ended, and are not under way to the collector yet, or just are."""
        return max(0, self.spans - self.spans_sent - self.spans_lost)


TELEMETRY_METRICS: Sequence[MetricDeclaration[TelemetryCounters]] = (
    MetricDeclaration(
        name="millstream_telemetry_spans_total",
        kind=MetricKind.COUNTER,
        help="Spans for the collector: those that it took, that it did not take (lost), and for"
        " which there was no room before it did (dropped).",
        labels=("outcome",),
        samples=(
            MetricSample(labels=("sent",), read=lambda told: told.spans_sent),
            MetricSample(labels=("lost",), read=lambda told: told.spans_lost),
            MetricSample(labels=("dropped",), read=lambda told: told.spans_dropped),
        ),
    ),
    gauge(
        "millstream_telemetry_waiting_spans",
        "Spans that wait for the collector.",
        lambda told: told.spans_waiting,
    ),
    MetricDeclaration(
        name="millstream_telemetry_readings_total",
        kind=MetricKind.COUNTER,
        help="Readings of all metrics for the collector: those that it took, that it did not take"
        " (lost), and that came while the one before was still under way (dropped).",
        labels=("outcome",),
        samples=(
            MetricSample(labels=("sent",), read=lambda told: told.readings_sent),
            MetricSample(labels=("lost",), read=lambda told: told.readings_lost),
            MetricSample(labels=("dropped",), read=lambda told: told.readings_dropped),
        ),
    ),
)

TELEMETRY = MetricSection(metrics=TELEMETRY_METRICS)
