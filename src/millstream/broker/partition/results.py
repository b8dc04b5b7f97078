"""Results of partition operations, as plain values."""

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
    """An `Appended` of a topic with log append time."""

    log_append_time_ms: int

    @classmethod
    def of(cls, appended: Appended, log_append_time_ms: int) -> TimestampedAppend:
        """Return `appended` with the timestamp that its records got."""
        stamped = cls(*appended)
        stamped.log_append_time_ms = log_append_time_ms
        return stamped


def append_time_of(appended: Appended) -> int:
    """Return the timestamp that the broker gave the batch, or -1 if producers set timestamps."""
    return appended.log_append_time_ms if isinstance(appended, TimestampedAppend) else -1


class AbortedTransactionStart(NamedTuple):
    """An aborted transaction, which a reader of committed records has to skip."""

    producer_id: int
    first_offset: int


class FetchResult(NamedTuple):
    """Whole batches in log order, as they are stored, except for deleted records."""

    parts: tuple[memoryview, ...]
    """At least one for each segment that was read; bytes of sealed segments are not copied."""
    next_offset: int
    """The offset to continue at; if nothing was read, the offset that was requested."""
    size: int
    """Total bytes of the parts."""
    aborted: tuple[AbortedTransactionStart, ...] = ()
    """Aborted transactions with records in these batches; empty unless only committed records are
    read."""
    is_blank: bool = False
    """Whether there is no record in it, only an empty batch that moves the reader to the end."""


class OffsetAndTimestamp(NamedTuple):
    """The result of an offset lookup."""

    offset: int
    timestamp_ms: int
    """-1 if the lookup was not for a record."""
    leader_epoch: int


class ProducerDescription(NamedTuple):
    """The state of a producer in one partition, for administrators."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """-1 if the current epoch has not written yet."""
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int
    """-1 if no transaction is open in this partition."""


class PartitionDescription(NamedTuple):
    """Counts and sizes of a partition, for administrators."""

    start_offset: int
    """The first offset that can be read."""
    eviction_floor: int
    """Retention has deleted all records before it; those between it and the start were deleted by a
    client.
    """
    high_watermark: int
    """The offset after the last that can be read."""
    leader_epoch: int
    cleaned_offset: int
    """Compaction has processed everything before it."""
    segments: int
    bytes: int
    """Size of all segments."""
    records: int
    """Records in all segments, without those deleted by key."""
    deleted_records: int
    """Records deleted by key that are still in a file."""
    reclaimable_bytes: int
    """Size of the deleted records."""
    gaps: tuple[Gap, ...]
    """Gaps that a late reader is told of, oldest first."""
