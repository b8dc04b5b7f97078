"""All that a node sends to a collector: begun with it, and ended within a bounded time."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.resources import Resource

import millstream
from millstream.config.schema import NodeConfig, TelemetryConfig
from millstream.observe.metrics.metric import MetricReading
from millstream.observe.metrics.telemetry import TelemetryCounters
from millstream.observe.otel.metric_points import metrics_data
from millstream.observe.otel.sender import (
    BoundedSpanProcessor,
    CollectorStatus,
    CountingSpanExporter,
    LastSdkMessage,
    MetricsSender,
)
from millstream.observe.otel.spans import SpanTracer

POINTS_PER_REQUEST_MAX = 10_000
"""Numbers in one request: some megabytes. A node with a thousand partitions sends five of them."""

_SDK = logging.getLogger("opentelemetry")


class TelemetryExport:
    """Spans and metrics of one node on their way. Made and used on the event loop."""

    def __init__(self, config: NodeConfig, counters: TelemetryCounters) -> None:
        self._config = config.telemetry
        self._counters = counters
        self._resource = resource_of(config)
        self._began_ns = time.time_ns()
        self._words = LastSdkMessage()
        _SDK.addHandler(self._words)
        self._was_propagating, _SDK.propagate = _SDK.propagate, False
        self._aborts: list[Callable[[], None]] = []
        """What gives up what is under way."""
        self.tracer = self._make_tracer() if self._config.traces else None
        self._sender = self._make_sender() if self._config.metrics else None
        self._read: Callable[[], Iterator[MetricReading]] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._flushed: asyncio.Future[None] | None = None

    def _make_tracer(self) -> SpanTracer:
        exporter = OTLPSpanExporter(endpoint=endpoint_of(self._config, "traces"))
        counted = CountingSpanExporter(
            exporter, self._counters, CollectorStatus("spans", self._words)
        )
        self._aborts.append(counted.shutdown)
        spans = BoundedSpanProcessor(
            counted, self._counters, waiting_max=self._config.traces_waiting_max
        )
        return SpanTracer(spans, self._resource, ratio=self._config.traces_ratio)

    def _make_sender(self) -> MetricsSender:
        exporter = OTLPMetricExporter(
            endpoint=endpoint_of(self._config, "metrics"),
            max_export_batch_size=POINTS_PER_REQUEST_MAX,
        )
        reach = CollectorStatus("metrics", self._words)
        sender = MetricsSender(exporter, self._encode, self._counters, reach)
        self._aborts.append(sender.abort)
        return sender

    def _encode(self, readings: Sequence[MetricReading]) -> MetricsData:
        now_ns = time.time_ns()
        return metrics_data(readings, self._resource, began_ns=self._began_ns, now_ns=now_ns)

    # Metrics.

    def send_metrics(self, read: Callable[[], Iterator[MetricReading]]) -> None:
        """Read metrics every interval from now on, in pieces, and have them sent."""
        if self._sender is not None:
            self._read = read
            self._reading = asyncio.get_running_loop().create_task(self._send_forever())

    async def _send_forever(self) -> None:
        while True:
            await asyncio.sleep(self._config.metrics_interval_ms / 1000)
            await self._send_once()

    async def _send_once(self) -> None:
        """Read all metrics, and let others have the loop between two of them."""
        if self._sender is None or self._read is None:
            return
        if self._sender.is_busy:  # Then it is not worth the time to read them.
            self._counters.readings_dropped += 1
            return
        found = []
        for reading in self._read():
            found.append(reading)
            await asyncio.sleep(0)
        self._sender.offer(found)

    # Ending.

    async def begin_flush(self) -> None:
        """Read metrics once more, and begin to hand on what is left; all else may go on."""
        if self._reading is not None:
            self._reading.cancel()
        await self._send_once()
        loop = asyncio.get_running_loop()
        flushed = self._flushed = loop.create_future()

        def tell() -> None:
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
                    loop.call_soon_threadsafe(tell)

        # Not a thread of the loop's own, which it would wait for: this one may take for ever.
        threading.Thread(target=flush, name="millstream-telemetry", daemon=True).start()

    async def end_flush(self, seconds: float) -> bool:
        """Wait at most so long, and give up the rest; returns whether all was handed on."""
        assert self._flushed is not None, "it was begun"
        await asyncio.wait([self._flushed], timeout=seconds)
        is_whole = self._flushed.done()
        if not is_whole:
            self._flushed.cancel()
            for abort in self._aborts:
                abort()
        _SDK.removeHandler(self._words)
        _SDK.propagate = self._was_propagating
        return is_whole


def endpoint_of(config: TelemetryConfig, signal: str) -> str | None:
    """Return where one kind goes; where the config does not say, the SDK knows from variables."""
    return None if config.endpoint is None else f"{config.endpoint.rstrip('/')}/v1/{signal}"


def resource_of(config: NodeConfig) -> Resource:
    """Return what all that is sent is about; what `OTEL_*` variables say of it counts."""
    found = Resource.create()
    named = str(found.attributes.get("service.name", ""))
    ours = {
        "service.name": config.telemetry.service_name
        or (named if named and not named.startswith("unknown_service") else "millstream"),
        "service.version": millstream.__version__,
        "service.instance.id": f"{socket.gethostname()}-{config.broker.node_id}",
    }
    pairs = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    said = {pair.partition("=")[0].strip() for pair in pairs} - {"service.name"}
    return found.merge(Resource({key: ours[key] for key in ours if key not in said}))
