"""Counters of the native server."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.servers.request_counters import RequestCounter, RequestCounters

UNKNOWN = "Unknown"
"""Label of frames that no client should send."""


@dataclass(slots=True)
class NativeCounters(RequestCounters):
    """Running totals of all connections of native clients."""

    requests: dict[str, RequestCounter] = field(default_factory=dict)
    """By label of the operation."""
    refused_requests: int = 0
    """Frames that were answered with an error."""
    backpressure: int = 0
    """Frames that were answered with a Backpressure frame."""
    catching_up: int = 0
    """Fetches past the end, which were answered with the newest offset."""
    ingested_records: int = 0
    fetched_records: int = 0
