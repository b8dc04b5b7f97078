"""Tracing interface of the servers, and the trace that the running code works for.

A server has a `Tracer` or none. Sampling is decided before anything is allocated: `begin` returns
`None` for requests that are not sampled, which are nearly all. The data of a span is bounded, and
exporting it never delays a request.

The trace of a request is a context variable, a `traceparent` of W3C Trace Context. Log events have
its ids, and requests to other nodes carry it on, whether or not this node records spans. Timers and
tasks that outlive a request run without it (`untraced`): what they do is not done for that request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import NamedTuple, Protocol

AttributeValue = str | int | float
"""Type of a span attribute."""

_TRACEPARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)

TRACEPARENT_LENGTH_MAX = 255
"""Characters of a `traceparent` that are carried on; those of the present version have 55."""

_CURRENT: ContextVar[str | None] = ContextVar("millstream_traceparent", default=None)


class TraceIds(NamedTuple):
    """A parsed `traceparent`."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits: the span of the caller."""
    flags: int


def parse_trace_ids(traceparent: str) -> TraceIds | None:
    """Parse a `traceparent`; return `None` if it is invalid."""
    if len(traceparent) > TRACEPARENT_LENGTH_MAX:
        return None
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None or (match[5] and match[1] == "00"):
        return None  # More may follow in later versions only.
    return TraceIds(match[2], match[3], int(match[4], 16))


def current_traceparent() -> str | None:
    """Return the trace of the request that the caller works for; `None` if there is none."""
    return _CURRENT.get()


@contextmanager
def traced_as(traceparent: str | None) -> Iterator[None]:
    """Work for a trace within the block. One that is invalid counts as none."""
    if traceparent is not None and parse_trace_ids(traceparent) is None:
        traceparent = None
    token = _CURRENT.set(traceparent)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def untraced() -> Context:
    """Return a context for timers and tasks that do not belong to the request that starts them."""
    return Context()


class Span(Protocol):
    """One traced request. Used on the event loop only, and not after `end`."""

    @property
    def traceparent(self) -> str:
        """The `traceparent` of requests that are made on behalf of this one."""
        ...

    def rename(self, name: str) -> None:
        """Change the name: some requests show their purpose only while they are processed."""
        ...

    def set_attribute(self, name: str, value: AttributeValue) -> None:
        """Set an attribute."""
        ...

    def step(self, name: str, seconds: float) -> None:
        """Record a part of the request that ended just now and took `seconds`."""
        ...

    def end(self, error: str | None = None) -> None:
        """End the span; `error` is a server-side failure. Further calls have no effect."""
        ...


class Tracer(Protocol):
    """Decides which requests are traced."""

    def begin(
        self, name: str, parent: str | None = None, *, is_outgoing: bool = False
    ) -> Span | None:
        """Begin a span, or return `None`; `parent` is the `traceparent` of the caller.

        `is_outgoing` is a request that this node makes, to another one.
        """
        ...
