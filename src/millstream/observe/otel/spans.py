"""Spans: which requests are followed, and what is told of them.

Most requests are not followed, and for those nothing is made: one look at `traceparent`, where the
client sent one, or one number drawn. A client that follows its own request has it followed here
too; what it does not follow is not.
"""

from __future__ import annotations

import random
import re
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
from millstream.tracing import AttributeValue

ATTRIBUTES_MAX = 32
ATTRIBUTE_LENGTH_MAX = 256
"""What a span may tell; the doors tell less than half of that."""

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class SpanTracer:
    """Follows requests of a node."""

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
        # Who is followed was decided before the SDK is asked, so it says yes to all.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, span_limits=limits, shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("millstream", millstream.__version__)

    def begin(self, name: str, parent: str | None = None) -> RequestSpan | None:
        """Follow a request, or do not."""
        told = None if parent is None else parent_of(parent)
        if told is None:
            if self._draw() >= self._ratio:
                return None
            context = Context()  # Whatever this thread may be part of has nothing to do with it.
        elif told.trace_flags.sampled:
            context = set_span_in_context(NonRecordingSpan(told), Context())
        else:
            return None
        return RequestSpan(
            self._tracer, self._tracer.start_span(name, context, kind=SpanKind.SERVER)
        )

    def shutdown(self) -> None:
        """Hand on what is left. Blocks for as long as the collector takes."""
        self._provider.shutdown()


def parent_of(text: str) -> SpanContext | None:
    """Return what a client says in `traceparent`; nothing where that is not what it should be."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None or (found[4] and text.startswith("00")):
        return None
    context = SpanContext(
        int(found[1], 16),
        int(found[2], 16),
        is_remote=True,
        trace_flags=TraceFlags(int(found[3], 16)),
    )
    return context if context.is_valid else None


class RequestSpan:
    """A request that is followed."""

    __slots__ = ("_is_ended", "_span", "_tracer")

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._is_ended = False

    def rename(self, name: str) -> None:
        """Call it otherwise."""
        self._span.update_name(name)

    def set_attribute(self, name: str, value: AttributeValue) -> None:
        """Say something of it."""
        self._span.set_attribute(name, value)

    def step(self, name: str, seconds: float) -> None:
        """Tell of a part of it that ended just now: a span of its own, below this one."""
        now = time.time_ns()
        context = set_span_in_context(self._span, Context())
        start = now - max(0, int(seconds * 1_000_000_000))
        self._tracer.start_span(name, context, start_time=start).end(now)

    def end(self, error: str | None = None) -> None:
        """Hand it on; only the first call does something."""
        if self._is_ended:
            return
        self._is_ended = True
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error[:ATTRIBUTE_LENGTH_MAX]))
        self._span.end()
