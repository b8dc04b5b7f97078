"""Sends telemetry to the collector: bounds what waits for it, and counts what arrived."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from millstream.observe.metrics.metric import MetricReading
from millstream.observe.metrics.telemetry import TelemetryCounters

logger = logging.getLogger(__name__)

SPANS_PER_REQUEST_MAX = 512
"""The default of the SDK."""


class LastSdkMessage(logging.Handler):
    """Keeps the last log message of the SDK, which it would otherwise log with every attempt."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


class CollectorStatus:
    """Logs when the collector stops accepting a signal, and when it accepts it again: once each."""

    def __init__(self, signal: str, message: LastSdkMessage) -> None:
        self._signal = signal
        self._message = message
        self._is_accepted = True

    def record(self, *, is_accepted: bool) -> None:
        """Record the outcome of one attempt."""
        if is_accepted == self._is_accepted:
            return
        self._is_accepted = is_accepted
        if is_accepted:
            logger.info("the collector accepts %s again", self._signal)
        else:
            logger.warning("the collector does not accept %s: %s", self._signal, self._message.last)


class CountingSpanExporter(SpanExporter):
    """Sends spans, and counts which were accepted. Runs in the thread of the SDK."""

    def __init__(
        self, inner: SpanExporter, counters: TelemetryCounters, status: CollectorStatus
    ) -> None:
        self._inner = inner
        self._counters = counters
        self._status = status
        self._is_shut = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            if not self._is_shut:
                result = self._inner.export(spans)
        finally:
            is_accepted = result is SpanExportResult.SUCCESS
            if is_accepted:
                self._counters.spans_sent += len(spans)
            else:
                self._counters.spans_lost += len(spans)
            self._status.record(is_accepted=is_accepted)
        return result

    def shutdown(self) -> None:
        """Send no more, and stop retries. Idempotent."""
        if not self._is_shut:
            self._is_shut = True
            self._inner.shutdown()


class BoundedSpanProcessor(BatchSpanProcessor):
    """Queues a bounded number of spans for the sending thread."""

    def __init__(
        self, exporter: SpanExporter, counters: TelemetryCounters, *, waiting_max: int
    ) -> None:
        super().__init__(
            exporter,
            max_queue_size=waiting_max,
            max_export_batch_size=min(SPANS_PER_REQUEST_MAX, waiting_max),
        )
        self._counters = counters
        self._waiting_max = waiting_max

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span, or drop it. Runs on the event loop and does not block."""
        counters = self._counters
        if counters.spans_waiting >= self._waiting_max:
            counters.spans_dropped += 1
            return
        counters.spans += 1
        super().on_end(span)


class MetricsSender:
    """Sends readings of all metrics, one at a time, in a thread of its own."""

    def __init__(
        self,
        exporter: MetricExporter,
        encode: Callable[[Sequence[MetricReading]], MetricsData],
        counters: TelemetryCounters,
        status: CollectorStatus,
    ) -> None:
        self._exporter = exporter
        self._encode = encode
        self._counters = counters
        self._status = status
        self._is_shut = False
        self._slot: queue.SimpleQueue[Sequence[MetricReading] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="millstream-metrics", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a reading is in flight."""
        counters = self._counters
        return counters.readings > counters.readings_sent + counters.readings_lost

    def offer(self, readings: Sequence[MetricReading], *, is_last: bool = False) -> None:
        """Queue a reading, or drop it if the one before is in flight. Does not block.

        The last one is queued in any case: it says that the node stops.
        """
        if self.is_busy and not is_last:
            self._counters.readings_dropped += 1
            return
        self._counters.readings += 1
        self._slot.put(readings)

    def shutdown(self) -> None:
        """Send what is queued, and end the thread. Blocks for as long as the collector takes."""
        self._slot.put(None)
        self._thread.join()
        self.abort()

    def abort(self) -> None:
        """Send no more, and stop retries. Idempotent."""
        if not self._is_shut:
            self._is_shut = True
            self._exporter.shutdown()

    def _run(self) -> None:
        for readings in iter(self._slot.get, None):
            is_accepted = False
            try:
                result = self._exporter.export(self._encode(readings))
                is_accepted = result is MetricExportResult.SUCCESS
            except Exception:
                logger.exception("cannot send metrics")
            finally:
                if is_accepted:
                    self._counters.readings_sent += 1
                else:
                    self._counters.readings_lost += 1
            self._status.record(is_accepted=is_accepted)
