"""Answers of a partition, as plain values: what was appended, read or found."""

from __future__ import annotations

from typing import NamedTuple

from millstream.records.record import Gap
from millstream.storage.append.pending_append import Appended

__all__ = [
    "AbortedTransactionStart",
    "Appended",
    "FetchResult",
    "OffsetAndTimestamp",
    "PartitionDescription",
    "ProducerDescription",
    "TimestampedAppend",
    "append_time_of",
]


class TimestampedAppend(Appended):
    """An `Appended` of a topic that dates its records itself."""

    log_append_time_ms: int

    @classmethod
    def of(cls, appended: Appended, log_append_time_ms: int) -> TimestampedAppend:
        """Return the same with the time that its records were dated."""
        stamped = cls(*appended)
        stamped.log_append_time_ms = log_append_time_ms
        return stamped


def append_time_of(appended: Appended) -> int:
    """When the broker dated the batch, in ms since 1970; -1 where producers date their records."""
    return appended.log_append_time_ms if isinstance(appended, TimestampedAppend) else -1


class AbortedTransactionStart(NamedTuple):
    """A transaction that a reader of committed records has to leave out."""

    producer_id: int
    first_offset: int


class FetchResult(NamedTuple):
    """Whole batches in the order of the log, as they lie there, save for deleted records."""

    parts: tuple[memoryview, ...]
    """At least one for each segment that was read; bytes of a sealed one are not copied."""
    next_offset: int
    """Where to read on; where nothing was there, that is where the reading began."""
    size: int
    """Bytes of all parts together."""
    aborted: tuple[AbortedTransactionStart, ...] = ()
    """Aborted transactions with records among these; empty for readers of everything."""
    is_blank: bool = False
    """Whether there is no record among these: one empty batch that takes the reader to the end."""


class OffsetAndTimestamp(NamedTuple):
    """The answer to a question about a time or an end of the log."""

    offset: int
    timestamp_ms: int
    """-1 where the question was not about a record."""
    leader_epoch: int


class ProducerDescription(NamedTuple):
    """What a partition remembers of a producer, for those who administrate."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """-1 where the present epoch has written nothing yet."""
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int
    """-1 where no transaction is open here."""


class PartitionDescription(NamedTuple):
    """What a partition holds and what went from it, for those who administrate."""

    start_offset: int
    """The first offset that can be read."""
    eviction_floor: int
    """All before it went by retention; what lies between it and the start was deleted."""
    high_watermark: int
    """The offset after the last that can be read."""
    leader_epoch: int
    cleaned_offset: int
    """Compaction has seen everything before it."""
    segments: int
    bytes: int
    """Of all its segments."""
    records: int
    """In all its segments, without those that were deleted by their key."""
    deleted_records: int
    """Deleted by their key, and still in a file."""
    reclaimable_bytes: int
    """What these take."""
    gaps: tuple[Gap, ...]
    """What a reader that comes too late is told of, oldest first."""
