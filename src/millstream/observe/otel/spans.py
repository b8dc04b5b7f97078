"""Spans: which requests are traced, and what is recorded of them.

Most requests are not traced and create no objects: the tracer looks at `traceparent`, if the client
sent it, or draws one random number. A request is traced if its client traces it, and not traced if
its client decided against it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

import millstream
from millstream.tracing import AttributeValue, parse_trace_ids

ATTRIBUTES_MAX = 32
ATTRIBUTE_LENGTH_MAX = 256
"""Limits of a span; the servers record less than half of that."""


class SpanTracer:
    """Traces the requests of a node."""

    def __init__(
        self,
        processor: SpanProcessor,
        resource: Resource,
        *,
        ratio: float,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._ratio = ratio
        self._draw = draw
        limits = SpanLimits(
            max_span_attributes=ATTRIBUTES_MAX, max_span_attribute_length=ATTRIBUTE_LENGTH_MAX
        )
        # Sampling is decided in `begin`, so the SDK samples everything.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, span_limits=limits, shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("millstream", millstream.__version__)

    def begin(
        self, name: str, parent: str | None = None, *, is_outgoing: bool = False
    ) -> RequestSpan | None:
        """Start the span of a request, or return `None` if it is not sampled."""
        client_context = None if parent is None else parse_traceparent(parent)
        if client_context is None:
            if self._draw() >= self._ratio:
                return None
            context = Context()  # Not part of a trace of this thread.
        elif client_context.trace_flags.sampled:
            context = set_span_in_context(NonRecordingSpan(client_context), Context())
        else:
            return None
        kind = SpanKind.CLIENT if is_outgoing else SpanKind.SERVER
        return RequestSpan(self._tracer, self._tracer.start_span(name, context, kind=kind))

    def shutdown(self) -> None:
        """Send what is left. Blocks for as long as the collector takes."""
        self._provider.shutdown()


def parse_traceparent(text: str) -> SpanContext | None:
    """Parse the header `traceparent`; return `None` if it is invalid."""
    ids = parse_trace_ids(text)
    if ids is None:
        return None
    return SpanContext(
        int(ids.trace_id, 16),
        int(ids.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(ids.flags),
    )


class RequestSpan:
    """The span of one request."""

    __slots__ = ("_is_ended", "_span", "_tracer")

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._is_ended = False

    @property
    def traceparent(self) -> str:
        """The `traceparent` of requests that are made on behalf of this one."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def set_attribute(self, name: str, value: AttributeValue) -> None:
        self._span.set_attribute(name, value)

    def step(self, name: str, seconds: float) -> None:
        """Record a step of the request that ended just now, as a child span."""
        now = time.time_ns()
        context = set_span_in_context(self._span, Context())
        start = now - max(0, int(seconds * 1_000_000_000))
        self._tracer.start_span(name, context, start_time=start).end(now)

    def end(self, error: str | None = None) -> None:
        """End the span and queue it for sending. Only the first call has an effect."""
        if self._is_ended:
            return
        self._is_ended = True
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error[:ATTRIBUTE_LENGTH_MAX]))
        self._span.end()
