"""What the Kafka door counts."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
    *(5.0, 10.0),
)
"""Upper ends of the buckets into which the time to an answer falls."""

PATIENT = frozenset({"Fetch", "JoinGroup", "SyncGroup"})
"""APIs whose requests may wait on purpose: how long they take says nothing of the node."""


def no_answers() -> list[int]:
    """Return buckets with nothing in them."""
    return [0] * (len(SECONDS) + 1)


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
    by_seconds: list[int] = field(default_factory=no_answers)
    """How many took so long; not summed up. APIs may share one."""

    def note(self, seconds: float) -> None:
        """Count an answer."""
        self.count += 1
        self.seconds += seconds
        self.by_seconds[bisect_left(SECONDS, seconds)] += 1


@dataclass(slots=True)
class DoorCounters:
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
    prompt_by_seconds: list[int] = field(default_factory=no_answers)
    """How many answers took so long, without those of APIs that may wait on purpose."""
