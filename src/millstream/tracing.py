"""Tracing interface of the servers.

A server has a `Tracer` or none. Sampling is decided before anything is allocated: `begin` returns
`None` for requests that are not sampled, which are nearly all. The data of a span is bounded, and
exporting it never delays a request.
"""

from __future__ import annotations

from typing import Protocol

AttributeValue = str | int | float
"""Type of a span attribute."""


class Span(Protocol):
    """One traced request. Used on the event loop only, and not after `end`."""

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

    def begin(self, name: str, parent: str | None = None) -> Span | None:
        """Begin a span, or return `None`; `parent` is the client's `traceparent` header."""
        ...
