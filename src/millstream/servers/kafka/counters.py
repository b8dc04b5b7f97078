"""Counters of the Kafka server."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.histogram import LATENCY_BUCKETS
from millstream.servers.request_counters import RequestCounter, RequestCounters

LONG_POLL_APIS = frozenset({"Fetch", "JoinGroup", "SyncGroup"})
"""APIs whose requests may wait on purpose: their duration says nothing about the node."""


@dataclass(slots=True)
class KafkaCounters(RequestCounters):
    """Running totals of all connections of clients."""

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
