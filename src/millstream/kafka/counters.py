"""What the Kafka door counts."""

from __future__ import annotations

from dataclasses import dataclass, field


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
