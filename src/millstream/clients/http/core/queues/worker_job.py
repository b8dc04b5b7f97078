"""Claimed job, as its worker sees it. The two clients add the methods that settle it."""

from __future__ import annotations

from typing import Any

from millstream.clients.http.core.values import ClaimedJob, Headers, Key, TopicRecord


class WorkerJob:
    """Job that belongs to a worker until its lease expires."""

    def __init__(self, claimed: ClaimedJob) -> None:
        self._claimed = claimed
        self.is_settled = False
        """Whether it was acknowledged or returned."""
        self.is_lost = False
        """Whether its lease expired: another worker may have the job."""

    @property
    def receipt(self) -> str:
        """Identifies this delivery of the job to the node."""
        return self._claimed.receipt

    @property
    def record(self) -> TopicRecord:
        return self._claimed.record

    @property
    def value(self) -> Any:
        """The decoded JSON value, or bytes."""
        return self._claimed.record.value

    @property
    def key(self) -> Key:
        return self._claimed.record.key

    @property
    def headers(self) -> Headers:
        return self._claimed.record.headers

    @property
    def deliveries(self) -> int:
        """Number of deliveries, including this one."""
        return self._claimed.deliveries

    @property
    def lease_s(self) -> float:
        """Length of the lease, from when it was claimed."""
        return self._claimed.deadline_ms / 1000

    def __repr__(self) -> str:
        record = self._claimed.record
        return f"<job {record.topic}:{record.partition}:{record.offset}>"
