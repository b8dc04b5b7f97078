"""Counters of the HTTP server."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from millstream.histogram import Histogram

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the response time buckets."""

OTHER = "other"
"""The route of requests that matched none: clients choose paths, so all of these are one line."""

REFUSALS = ("connections", "address", "descriptors", "tls")
"""Limits that a refused connection exceeded: all connections, those of its address, descriptors; or
there was no TLS connection."""

CLOSE_REASONS = ("malformed", "head", "body", "idle", "output", "memory", "tls")
"""Why the server closed a connection: the input was malformed or late, the output was not read,
there was no memory for it, or the certificate of the client names no user.
"""


@dataclass(slots=True)
class RouteCounter:
    """Totals of one operation."""

    by_class: list[int] = field(default_factory=lambda: [0] * 6)
    """Responses by the first digit of their status."""
    seconds: float = 0.0
    """Sum of the times from request head to response head."""


@dataclass(slots=True)
class HttpCounters:
    """Totals of all connections, and their current memory."""

    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    received_bytes: int = 0
    sent_bytes: int = 0
    held_bytes: int = 0
    """Bytes of requests that are arriving, in flight, or waiting behind one."""
    unread_bytes: int = 0
    """Bytes of responses that clients do not read, if they delay anything."""
    throttled: Counter[str] = field(default_factory=Counter)
    """Requests that were refused because of a quota, by quota."""
    held_deliveries: Counter[str] = field(default_factory=Counter)
    """Number of times that live delivery was delayed by a quota, by quota."""
    throttle_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Sum of these delays, and of the retry delays in refusals."""
    routes: dict[tuple[str, str], RouteCounter] = field(default_factory=dict)
    """By method and path template: one for each operation, and one for all others."""
    durations: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """Response times."""
    prompt_durations: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """Response times without long polls."""

    def note_answer(
        self, method: str, path: str, status: int, seconds: float, *, is_long_poll: bool = False
    ) -> None:
        """Count a response; `is_long_poll` if the client asked to wait."""
        route = self.routes.get((method, path))
        if route is None:
            route = self.routes.setdefault((method, path), RouteCounter())
        route.by_class[min(status // 100, 5)] += 1
        route.seconds += seconds
        self.durations.observe(seconds)
        if not is_long_poll:
            self.prompt_durations.observe(seconds)
