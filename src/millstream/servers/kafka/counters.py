"""Counters of the Kafka server."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.histogram import LATENCY_BUCKETS, Histogram
from millstream.servers.frame_counters import FrameCounters

LONG_POLL_APIS = frozenset({"Fetch", "JoinGroup", "SyncGroup"})
"""APIs whose requests may wait on purpose: their duration says nothing about the node."""


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
class KafkaCounters(FrameCounters):
    """Running totals of all connections of clients."""

    throttled: int = 0
    throttle_seconds: float = 0.0
    requests: dict[str, RequestCounter] = field(default_factory=dict)
    """By name of the API."""

    def prompt_answers(self) -> list[int]:
        """Return counts of responses by duration bucket, without those of long-poll APIs."""
        counted = (
            requests.durations.counts
            for name, requests in self.requests.items()
            if name not in LONG_POLL_APIS
        )
        return [
            sum(column) for column in zip([0] * (len(LATENCY_BUCKETS) + 1), *counted, strict=True)
        ]
