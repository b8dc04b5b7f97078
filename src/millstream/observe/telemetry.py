"""What becomes of spans and metrics that go to a collector, as Prometheus reads it.

Each number has one writer, the event loop or the thread that sends, so that nobody needs a lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.observe.metrics import Declared, Kind, Sample, Section, gauge


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


TELEMETRY_METRICS: Sequence[Declared[TelemetryCounters]] = (
    Declared(
        name="millstream_telemetry_spans_total",
        kind=Kind.COUNTER,
        help="Spans for the collector: those that it took, that it did not take (lost), and for"
        " which there was no room before it did (dropped).",
        labels=("outcome",),
        samples=(
            Sample(labels=("sent",), read=lambda told: told.spans_sent),
            Sample(labels=("lost",), read=lambda told: told.spans_lost),
            Sample(labels=("dropped",), read=lambda told: told.spans_dropped),
        ),
    ),
    gauge(
        "millstream_telemetry_waiting_spans",
        "Spans that wait for the collector.",
        lambda told: told.spans_waiting,
    ),
    Declared(
        name="millstream_telemetry_readings_total",
        kind=Kind.COUNTER,
        help="Readings of all metrics for the collector: those that it took, that it did not take"
        " (lost), and that came while the one before was still under way (dropped).",
        labels=("outcome",),
        samples=(
            Sample(labels=("sent",), read=lambda told: told.readings_sent),
            Sample(labels=("lost",), read=lambda told: told.readings_lost),
            Sample(labels=("dropped",), read=lambda told: told.readings_dropped),
        ),
    ),
)

TELEMETRY = Section(metrics=TELEMETRY_METRICS)
