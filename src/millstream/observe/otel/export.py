"""Export of telemetry: starts with the node, and stops within a bounded time."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from opentelemetry.sdk.metrics.export import MetricExporter, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExporter

import millstream
from millstream.config.schema import NodeConfig
from millstream.observe.metrics.metric import MetricReading
from millstream.observe.metrics.telemetry import TelemetryCounters
from millstream.observe.otel.exporters import make_metric_exporter, make_span_exporter
from millstream.observe.otel.metric_points import metrics_data
from millstream.observe.otel.sender import (
    BoundedSpanProcessor,
    CollectorStatus,
    CountingSpanExporter,
    LastSdkMessage,
    MetricsSender,
)
from millstream.observe.otel.spans import SpanTracer

_SDK = logging.getLogger("opentelemetry")


class TelemetryExport:
    """Sends the spans and metrics of one node. Made and used on the event loop."""

    def __init__(self, config: NodeConfig, counters: TelemetryCounters) -> None:
        telemetry = self._config = config.telemetry
        # First: an extra may be missing.
        span_exporter = make_span_exporter(telemetry) if telemetry.traces else None
        metric_exporter = make_metric_exporter(telemetry) if telemetry.metrics else None
        self._counters = counters
        self._resource = resource_of(config)
        self._started_ns = time.time_ns()
        self._last_message = LastSdkMessage()
        _SDK.addHandler(self._last_message)
        _SDK.propagate = False
        self._aborts: list[Callable[[], None]] = []
        """Functions that abort requests in flight."""
        self.tracer = None if span_exporter is None else self._make_tracer(span_exporter)
        self._sender = None if metric_exporter is None else self._make_sender(metric_exporter)
        self._read: Callable[[], Iterator[MetricReading]] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._flushed: asyncio.Future[None] | None = None

    def _make_tracer(self, exporter: SpanExporter) -> SpanTracer:
        counted = CountingSpanExporter(
            exporter, self._counters, CollectorStatus("spans", self._last_message)
        )
        self._aborts.append(counted.shutdown)
        spans = BoundedSpanProcessor(
            counted, self._counters, waiting_max=self._config.traces_waiting_max
        )
        return SpanTracer(spans, self._resource, ratio=self._config.traces_ratio)

    def _make_sender(self, exporter: MetricExporter) -> MetricsSender:
        status = CollectorStatus("metrics", self._last_message)
        sender = MetricsSender(exporter, self._encode, self._counters, status)
        self._aborts.append(sender.abort)
        return sender

    def _encode(self, readings: Sequence[MetricReading]) -> MetricsData:
        now_ns = time.time_ns()
        return metrics_data(readings, self._resource, started_ns=self._started_ns, now_ns=now_ns)

    # Metrics.

    def send_metrics(self, read: Callable[[], Iterator[MetricReading]]) -> None:
        """Read metrics in pieces and send them, once per interval from now on."""
        if self._sender is not None:
            self._read = read
            self._reading = asyncio.get_running_loop().create_task(self._send_forever())

    async def _send_forever(self) -> None:
        while True:
            await asyncio.sleep(self._config.metrics_interval_ms / 1000)
            await self._send_once()

    async def _send_once(self, *, is_last: bool = False) -> None:
        """Read all metrics, yielding to the loop between them."""
        if self._sender is None or self._read is None:
            return
        if self._sender.is_busy and not is_last:
            # Reading them would be a waste: they could not be sent.
            self._counters.readings_dropped += 1
            return
        readings = []
        for reading in self._read():
            readings.append(reading)
            await asyncio.sleep(0)
        self._sender.offer(readings, is_last=is_last)

    # Ending.

    async def begin_flush(self) -> None:
        """Read metrics once more, and start to send what is left in the background."""
        if self._reading is not None:
            self._reading.cancel()
        await self._send_once(is_last=True)
        loop = asyncio.get_running_loop()
        flushed = self._flushed = loop.create_future()

        def notify() -> None:
            if not flushed.done():
                flushed.set_result(None)

        def flush() -> None:
            try:
                if self.tracer is not None:
                    self.tracer.shutdown()
                if self._sender is not None:
                    self._sender.shutdown()
            finally:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(notify)

        # Not a thread of the loop's executor, which the loop would wait for: this may take forever.
        threading.Thread(target=flush, name="millstream-telemetry", daemon=True).start()

    async def end_flush(self, seconds: float) -> bool:
        """Wait at most `seconds`, then abort; return whether everything was sent."""
        assert self._flushed is not None, "`begin_flush` was called"
        await asyncio.wait([self._flushed], timeout=seconds)
        is_flushed = self._flushed.done()
        if not is_flushed:
            self._flushed.cancel()
            for abort in self._aborts:
                abort()
        _SDK.removeHandler(self._last_message)
        # Several nodes may run in one process, and stop in any order.
        if not any(isinstance(handler, LastSdkMessage) for handler in _SDK.handlers):
            _SDK.propagate = True
        return is_flushed


def resource_of(config: NodeConfig) -> Resource:
    """Return the resource that describes this node; `OTEL_*` variables take precedence."""
    detected = Resource.create()
    named = str(detected.attributes.get("service.name", ""))
    ours = {
        "service.name": config.telemetry.service_name
        or (named if named and not named.startswith("unknown_service") else "millstream"),
        "service.version": millstream.__version__,
        "service.instance.id": f"{socket.gethostname()}-{config.broker.node_id}",
    }
    pairs = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    from_environment = {pair.partition("=")[0].strip() for pair in pairs} - {"service.name"}
    return detected.merge(Resource({key: ours[key] for key in ours if key not in from_environment}))
