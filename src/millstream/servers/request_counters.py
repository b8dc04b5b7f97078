"""Counters of a server whose clients send requests as frames."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.histogram import Histogram
from millstream.servers.frame_counters import FrameCounters


@dataclass(slots=True)
class RequestCounter:
    """Running totals of the requests of one API."""

    count: int = 0
    errors: int = 0
    """Requests that closed their connection by an internal error."""
    seconds: float = 0.0
    """Total time from the last byte of a request until its response was ready."""
    loop_seconds: float = 0.0
    """Part of this time that the event loop was busy with them."""
    durations: Histogram = field(default_factory=Histogram)

    def record(self, seconds: float) -> None:
        """Count a request that was answered after `seconds`."""
        self.count += 1
        self.seconds += seconds
        self.durations.observe(seconds)


@dataclass(slots=True)
class RequestCounters(FrameCounters):
    """Running totals of all connections of clients."""

    throttled: int = 0
    throttle_seconds: float = 0.0
