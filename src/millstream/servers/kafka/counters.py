"""What the Kafka door counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.histogram import LATENCY_BUCKETS, Histogram

LONG_POLL_APIS = frozenset({"Fetch", "JoinGroup", "SyncGroup"})
"""APIs whose requests may wait on purpose: how long they take says nothing of the node."""


@dataclass(slots=True)
class RequestCounter:
    """Running totals of the requests of one kind."""

    count: int = 0
    errors: int = 0
    """Those that ended their connection by an error of ours."""
    seconds: float = 0.0
    """From the last byte of the request to its answer's being ready, all together."""
    loop_seconds: float = 0.0
    """Of these, time that the event loop was busy with them."""
    durations: Histogram = field(default_factory=Histogram)
    """How many took how long."""

    def note(self, seconds: float) -> None:
        """Count a request that was answered after so long."""
        self.count += 1
        self.seconds += seconds
        self.durations.observe(seconds)


@dataclass(slots=True)
class KafkaCounters:
    """Running totals of all connections."""

    accepted: int = 0
    refused: int = 0
    closed_by_us: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    throttled: int = 0
    throttle_seconds: float = 0.0
    requests: dict[str, RequestCounter] = field(default_factory=dict)
    """By the name of the API."""

    def prompt_answers(self) -> list[int]:
        """Return how many answers took how long, without those of APIs that wait on purpose."""
        counted = (
            one.durations.counts
            for name, one in self.requests.items()
            if name not in LONG_POLL_APIS
        )
        return [
            sum(column) for column in zip([0] * (len(LATENCY_BUCKETS) + 1), *counted, strict=True)
        ]
