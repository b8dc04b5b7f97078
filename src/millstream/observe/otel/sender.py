"""Sending: what goes to the collector, how much may wait for it, and what became of it."""

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
"""What the SDK sends in one request unless told otherwise."""


class LastSdkMessage(logging.Handler):
    """Keeps the last that the SDK had to say, which it would otherwise say with every attempt."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.last = record.getMessage()


class CollectorStatus:
    """Says when the collector stops taking something, and when it does again: once each."""

    def __init__(self, what: str, words: LastSdkMessage) -> None:
        self._what = what
        self._words = words
        self._is_taken = True

    def note(self, *, is_taken: bool) -> None:
        """Take note of one attempt."""
        if is_taken == self._is_taken:
            return
        self._is_taken = is_taken
        if is_taken:
            logger.info("the collector takes %s again", self._what)
        else:
            logger.warning("the collector takes no %s: %s", self._what, self._words.last)


class CountingSpanExporter(SpanExporter):
    """Sends spans, and counts which arrived. Runs in the thread of the SDK."""

    def __init__(
        self, inner: SpanExporter, counters: TelemetryCounters, reach: CollectorStatus
    ) -> None:
        self._inner = inner
        self._counters = counters
        self._reach = reach
        self._is_shut = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send some."""
        result = SpanExportResult.FAILURE
        try:
            if not self._is_shut:
                result = self._inner.export(spans)
        finally:
            is_taken = result is SpanExportResult.SUCCESS
            if is_taken:
                self._counters.spans_sent += len(spans)
            else:
                self._counters.spans_lost += len(spans)
            self._reach.note(is_taken=is_taken)
        return result

    def shutdown(self) -> None:
        """Send no more, and give up what is being tried again; repeating it does nothing."""
        if not self._is_shut:
            self._is_shut = True
            self._inner.shutdown()


class BoundedSpanProcessor(BatchSpanProcessor):
    """Has spans wait for the thread that sends them, up to a number of them."""

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
        """Take a span, or drop it. Runs on the event loop, and waits for nothing."""
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
        reach: CollectorStatus,
    ) -> None:
        self._exporter = exporter
        self._encode = encode
        self._counters = counters
        self._reach = reach
        self._is_shut = False
        self._slot: queue.SimpleQueue[Sequence[MetricReading] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="millstream-metrics", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a reading is under way."""
        counters = self._counters
        return counters.readings > counters.readings_sent + counters.readings_lost

    def offer(self, readings: Sequence[MetricReading]) -> None:
        """Have a reading sent, or drop it where the one before is under way. Waits for nothing."""
        if self.is_busy:
            self._counters.readings_dropped += 1
            return
        self._counters.readings += 1
        self._slot.put(readings)

    def shutdown(self) -> None:
        """Send what was offered, and end. Blocks for as long as the collector takes."""
        self._slot.put(None)
        self._thread.join()
        self.abort()

    def abort(self) -> None:
        """Send no more, and give up what is being tried again; repeating it does nothing."""
        if not self._is_shut:
            self._is_shut = True
            self._exporter.shutdown()

    def _run(self) -> None:
        for readings in iter(self._slot.get, None):
            is_taken = False
            try:
                result = self._exporter.export(self._encode(readings))
                is_taken = result is MetricExportResult.SUCCESS
            except Exception:
                logger.exception("metrics could not be sent")
            finally:
                if is_taken:
                    self._counters.readings_sent += 1
                else:
                    self._counters.readings_lost += 1
            self._reach.note(is_taken=is_taken)
