"""Appends on their way to one partition: one request at a time, and what waits shares the next.

    add ─► waiting ──── take, when nothing is under way ───► under way ─► outcome of each parcel
                        parcels up to a size, in order        1 request

The node knows by its producer and sequence whether it has a request already. So there is only ever
one under way: behind one that failed, a second one would be out of order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from millstream.clients.http.core.config import ClientConfig
from millstream.clients.http.core.requests import HttpProducerId

SEQUENCE_MAX = 2**31 - 1


class RecordGroup:
    """Records of one call for one partition, which go together: all of them or none."""

    __slots__ = ("deadline", "rows", "size", "ticket")

    def __init__(self, rows: Sequence[bytes], *, deadline: float, ticket: Any) -> None:
        self.rows = rows
        self.size = sum(map(len, rows))
        self.deadline = deadline
        """When there is no use in sending it any more."""
        self.ticket = ticket
        """What its sender waits by; means nothing here."""


class PartitionAppends:
    """The way to one partition. For one thread at a time."""

    def __init__(self, topic: str, partition: int, config: ClientConfig) -> None:
        self.topic = topic
        self.partition = partition
        self.producer: HttpProducerId | None = None
        """Under which id the next request goes; none where one has to be taken first."""
        self.spent: HttpProducerId | None = None
        """The id that may not be used here again: it is not known what the node has of it."""
        self.sequence = 0
        """How many records this producer appended to the partition."""
        self.is_busy = False
        """Whether a request is under way."""
        self.waiting: deque[RecordGroup] = deque()
        self._config = config

    def take(self) -> list[RecordGroup]:
        """Return what goes into the next request; at least one parcel, where any waits."""
        taken: list[RecordGroup] = []
        size = count = 0
        while self.waiting:
            parcel = self.waiting[0]
            size += parcel.size
            count += len(parcel.rows)
            is_too_much = (
                size > self._config.gather_bytes_max or count > self._config.gather_records_max
            )
            if taken and is_too_much:
                break
            taken.append(self.waiting.popleft())
        return taken

    def begin(self, producer: HttpProducerId) -> None:
        """Start anew, under an id that was never used here."""
        assert producer != self.spent, "the node would take what is new for what it has"
        self.producer = producer
        self.sequence = 0

    def end(self) -> None:
        """Use the id no more: it is not known what the node has of it."""
        if self.producer is not None:
            self.spent = self.producer
        self.producer = None

    def advance(self, count: int) -> None:
        """Take note that the node has `count` records more."""
        self.sequence += count
        if self.sequence > SEQUENCE_MAX // 2:
            self.end()  # Long before the numbers begin anew.
