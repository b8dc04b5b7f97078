"""Who follows a request on its way, where somebody does: what the doors know of tracing.

The doors hold a `Tracer` or nothing. Whether a request is followed is decided before anything is
made for it: `begin` returns nothing for those that are not, which are nearly all. What a span tells
is bounded, and goes nowhere near what the request waits for.
"""

from __future__ import annotations

from typing import Protocol

AttributeValue = str | int | float
"""What may be said of a request."""


class Span(Protocol):
    """One request that is followed. Used on the event loop, and no more once it ended."""

    def rename(self, name: str) -> None:
        """Call it otherwise: what a request is for shows on its way."""
        ...

    def note(self, name: str, value: AttributeValue) -> None:
        """Say something of it."""
        ...

    def step(self, name: str, seconds: float) -> None:
        """Tell of a part of it that ended just now, and took so long."""
        ...

    def end(self, error: str | None = None) -> None:
        """It was answered; `error` says what of ours went wrong. Repeating this does nothing."""
        ...


class Tracer(Protocol):
    """Decides which requests are followed."""

    def begin(self, name: str, parent: str | None = None) -> Span | None:
        """Follow a request, or do not; `parent` is what its client says in `traceparent`."""
        ...
