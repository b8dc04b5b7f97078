"""What happened to a queue, and how that lies in its log.

    one record of the log               all events of one request, and all requests that
    +---------+--------------------+    came while the disk was busy, share a batch
    | version | event: an array in |
    | 1 byte  | MessagePack        |    the record has no key and no headers
    +---------+--------------------+

    [0, boot id, now]                            Started      deadlines are of another boot
    [1, partition, offset]                       Began        the queue begins there
    [2, due, lease, [fresh...], jobs]            Delivered    jobs were handed out
         fresh = [partition, [first, count...], end, removed]
    [3, jobs]                                    Acked
    [4, due, delay, jobs]                        Returned     a worker gave them back
    [5, due, lease, jobs]                        Extended
    [6, topic id, [end...], expired, nacked]     Burying      they are about to be dead letters
    [7, dead, removed, kept, due, delay]         Buried       dead, removed, kept: jobs
    [8, jobs]                                    Removed      they were deleted from the topic
    [9, partition, end]                          Cut          the topic lost its end in a crash
    [10, ...]                                    Snapshot     all that was before, in one
    [11, generation]                             Renewed      receipts from before count no more

    jobs = [[partition, [offset...]]...]         times are milliseconds of the monotonic clock

An event says what was decided, and never has to be decided again: replaying needs no clock and no
topic.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from millstream.errors import CorruptData, UnknownFormat

EVENT_VERSION = 1

JobOffsets: TypeAlias = list[tuple[int, list[int]]]
"""Offsets by partition."""


class NodeBooted(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The node runs in another boot: every lease and delay begins anew, with its full length."""

    boot_id: str
    now_ms: int


class PartitionAdded(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The queue has one more partition, and the job at `offset` is its first."""

    partition: int
    offset: int


class FirstDeliveries(msgspec.Struct, frozen=True, array_like=True):
    """Jobs of one partition that are handed out for the first time."""

    partition: int
    runs: list[int]
    """First offset and count, of each stretch without a hole."""
    end: int
    """The new frontier: what lies before it and is in no run was no job."""
    removed: int
    """How many of those had been jobs, and were deleted."""


class JobsDelivered(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Jobs were handed out."""

    due_ms: int
    lease_ms: int
    fresh: list[FirstDeliveries]
    again: JobOffsets


class JobsAcked(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Jobs are done."""

    jobs: JobOffsets


class JobsReturned(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A worker gave jobs back."""

    due_ms: int
    delay_ms: int
    jobs: JobOffsets


class LeasesExtended(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Leases last longer."""

    due_ms: int
    lease_ms: int
    jobs: JobOffsets


class DeadLettersIntended(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Jobs that were handed out too often are about to be appended to the dead-letter topic."""

    topic_id: bytes
    ends: list[int]
    """Where its partitions ended: what is appended for these jobs lies at or after that."""
    expired: JobOffsets
    nacked: JobOffsets


class DeadLettersMoved(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The jobs that were about to be dead letters are, or were deleted meanwhile."""

    dead: JobOffsets
    removed: JobOffsets
    kept: JobOffsets = []
    """Those that the dead-letter topic does not take: they rest, and it is tried again."""
    due_ms: int = 0
    delay_ms: int = 0


class JobsRemoved(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Jobs were deleted from the topic before they were done."""

    jobs: JobOffsets


class PartitionTruncated(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The partition ends at `end`, and had been longer: a class below `fsync` lost its end."""

    partition: int
    end: int


class QueueStateSnapshot(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """A whole state."""

    boot_id: str
    generation: int
    counters: list[int]
    """acked, dead, delivered, removed"""
    lanes: list[tuple[int, int, int, list[int]]]
    """Partition, frontier, forgotten, and its unfinished jobs: five numbers each."""
    ended: list[int]
    """Partition, offset and final delivery of jobs that did not end by their first delivery."""
    intent: DeadLettersIntended | None


class ReceiptsInvalidated(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Receipts from before count no more: deliveries that were answered may have been lost.

    That is when the queue is new, and where a class below `fsync` may have lost its end.
    """

    generation: int


QueueEvent: TypeAlias = (
    NodeBooted
    | PartitionAdded
    | JobsDelivered
    | JobsAcked
    | JobsReturned
    | LeasesExtended
    | DeadLettersIntended
    | DeadLettersMoved
    | JobsRemoved
    | PartitionTruncated
    | QueueStateSnapshot
    | ReceiptsInvalidated
)

_VERSION = bytes([EVENT_VERSION])
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[QueueEvent] = msgspec.msgpack.Decoder(QueueEvent)


def encode_event(event: QueueEvent) -> bytes:
    """Write an event."""
    return _VERSION + _encoder.encode(event)


def decode_event(data: bytes) -> QueueEvent:
    """Read an event; raises `UnknownFormat` or `CorruptData`."""
    if data[:1] != _VERSION:
        found = data[0] if data else "nothing"
        raise UnknownFormat(f"event of a queue: found version {found}, known is {EVENT_VERSION}")
    try:
        return _decoder.decode(memoryview(data)[1:])
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptData(f"not an event of a queue: {error}") from error


def runs_of(offsets: list[int]) -> list[int]:
    """Return rising offsets as first and count of each stretch without a hole."""
    if not offsets:
        return []
    first, last = offsets[0], offsets[-1]
    if last - first + 1 == len(offsets):
        return [first, len(offsets)]
    runs = [first, 0]
    for offset in offsets:
        if offset == runs[-2] + runs[-1]:
            runs[-1] += 1
        else:
            runs += (offset, 1)
    return runs


def offsets_of(runs: list[int]) -> list[int]:
    """Return the offsets that `runs_of` was given."""
    if len(runs) == 2:
        return list(range(runs[0], runs[0] + runs[1]))
    return [
        offset
        for first, count in zip(runs[::2], runs[1::2], strict=True)
        for offset in range(first, first + count)
    ]


def group_jobs(pairs: list[tuple[int, int]]) -> JobOffsets:
    """Return partitions and offsets as offsets by partition, in their order."""
    jobs: dict[int, list[int]] = {}
    for partition, offset in pairs:
        jobs.setdefault(partition, []).append(offset)
    return list(jobs.items())


def count_jobs(jobs: JobOffsets) -> int:
    """Return how many jobs these are."""
    return sum(len(offsets) for _, offsets in jobs)
