"""A job of a queue, as its worker sees it; what is done with it is for those who block or await."""

from __future__ import annotations

from typing import Any

from millstream.clients.http.core.values import ClaimedJob, Headers, Key, TopicRecord


class WorkerJob:
    """A job that belongs to a worker, until its lease ends."""

    def __init__(self, claimed: ClaimedJob) -> None:
        self._claimed = claimed
        self.is_settled = False
        """Whether it was acked or given back."""
        self.is_lost = False
        """Whether its lease was found to have ended: the job may belong to someone else."""

    @property
    def receipt(self) -> str:
        """What its worker speaks of it by."""
        return self._claimed.receipt

    @property
    def record(self) -> TopicRecord:
        """The record that it is."""
        return self._claimed.record

    @property
    def value(self) -> Any:
        """The value: what its JSON says, or bytes."""
        return self._claimed.record.value

    @property
    def key(self) -> Key:
        """The key."""
        return self._claimed.record.key

    @property
    def headers(self) -> Headers:
        """The headers."""
        return self._claimed.record.headers

    @property
    def deliveries(self) -> int:
        """How often it was handed out, this time included."""
        return self._claimed.deliveries

    @property
    def lease_s(self) -> float:
        """How long it belonged to the worker, from when it was claimed."""
        return self._claimed.deadline_ms / 1000

    def __repr__(self) -> str:
        record = self._claimed.record
        return f"<job {record.topic}:{record.partition}:{record.offset}>"
