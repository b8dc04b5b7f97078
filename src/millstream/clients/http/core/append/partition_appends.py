"""Appends to one partition: one request in flight, and waiting groups share the next one.

    add ─► waiting ──── take, if nothing is in flight ───► in flight ─► outcome of each group
                        groups up to a size, in order       1 request

The node detects repeated requests by producer and sequence. Only one request may be in flight: a
second one behind a request that failed would be out of order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from millstream.clients.http.core.config import ClientConfig
from millstream.clients.http.core.requests import HttpProducerId

SEQUENCE_MAX = 2**31 - 1


class RecordGroup:
    """Records of one call for one partition. They are appended all or none."""

    __slots__ = ("deadline", "rows", "size", "ticket")

    def __init__(self, rows: Sequence[bytes], *, deadline: float, ticket: Any) -> None:
        self.rows = rows
        self.size = sum(map(len, rows))
        self.deadline = deadline
        """After this time, the group is not sent any more."""
        self.ticket = ticket
        """What the sender waits on; not used here."""


class PartitionAppends:
    """Queue of appends to one partition. For one thread at a time."""

    def __init__(self, topic: str, partition: int, config: ClientConfig) -> None:
        self.topic = topic
        self.partition = partition
        self.producer: HttpProducerId | None = None
        """Producer id of the next request; `None` if one has to be acquired first."""
        self.retired: HttpProducerId | None = None
        """Producer id that must not be used again: the node's sequence is unknown."""
        self.sequence = 0
        """Number of records that this producer appended to the partition."""
        self.is_busy = False
        """Whether a request is in flight."""
        self.waiting: deque[RecordGroup] = deque()
        self._config = config

    def take(self) -> list[RecordGroup]:
        """Remove and return the groups of the next request: at least one, if any waits."""
        groups: list[RecordGroup] = []
        size = count = 0
        while self.waiting:
            group = self.waiting[0]
            size += group.size
            count += len(group.rows)
            is_too_much = (
                size > self._config.gather_bytes_max or count > self._config.gather_records_max
            )
            if groups and is_too_much:
                break
            groups.append(self.waiting.popleft())
        return groups

    def start_producer(self, producer: HttpProducerId) -> None:
        """Start at sequence 0 with a producer id that was never used here."""
        assert producer != self.retired, "the node would take new records for repeated ones"
        self.producer = producer
        self.sequence = 0

    def retire_producer(self) -> None:
        """Stop using the producer id, because the node's sequence for it is unknown."""
        if self.producer is not None:
            self.retired = self.producer
        self.producer = None

    def advance(self, count: int) -> None:
        """Advance the sequence by `count` acknowledged records."""
        self.sequence += count
        if self.sequence > SEQUENCE_MAX // 2:
            self.retire_producer()  # Long before the sequence numbers wrap around.
