"""The events of a queue, and their format in its log.

    one record of the log               all events of one request, and all requests that
    +---------+--------------------+    arrived while a batch was in flight, share a batch
    | version | event: an array in |
    | 1 byte  | MessagePack        |    the record has no key and no headers
    +---------+--------------------+

    [0, boot id, now]                            NodeBooted            deadlines are of another boot
    [1, partition, offset]                       PartitionAdded        its first job is at `offset`
    [2, due, lease, [fresh...], jobs]            JobsDelivered
         fresh = [partition, [first, count...], end, removed]
    [3, jobs]                                    JobsAcked
    [4, due, delay, jobs]                        JobsReturned          by a worker
    [5, due, lease, jobs]                        LeasesExtended
    [6, topic id, [end...], expired, nacked]     DeadLettersIntended   about to be dead letters
    [7, dead, removed, kept, due, delay]         DeadLettersMoved      dead, removed, kept: jobs
    [8, jobs]                                    JobsRemoved           deleted from the topic
    [9, partition, end]                          PartitionTruncated    it lost its end in a crash
    [10, ...]                                    QueueStateSnapshot    replaces all events before
    [11, generation]                             ReceiptsInvalidated   those issued before
    [12, now, jobs]                              JobsReleased          by a worker: not tried
    [13, now, partition, offset, end]            BatchDamaged          skipped, a dead letter next

    jobs = [[partition, [offset...]]...]         times are milliseconds of the monotonic clock

An event is the outcome of a decision: replaying needs no clock and no topic.

Events have version 1, except those that earlier releases do not know: `JobsReleased`,
`BatchDamaged`, and intents and snapshots that contain their effects have version 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from millstream.errors import CorruptData, UnknownFormat

EVENT_VERSION = 2
"""The newest version; all older ones can be read too."""

JobPosition: TypeAlias = tuple[int, int]
"""Partition and offset of a job."""

JobOffsets: TypeAlias = list[tuple[int, list[int]]]
"""Offsets by partition."""


class NodeBooted(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The node runs in another boot: every lease and delay starts again, with its full length."""

    boot_id: str
    now_ms: int


class PartitionAdded(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The queue has one more partition, and the job at `offset` is its first."""

    partition: int
    offset: int


class FirstDeliveries(msgspec.Struct, frozen=True, array_like=True):
    """Jobs of one partition that are delivered for the first time."""

    partition: int
    runs: list[int]
    """First offset and count of each run of consecutive offsets."""
    end: int
    """The new frontier: offsets before it that are in no run hold no job."""
    removed: int
    """How many of those had been jobs, and were deleted."""


class JobsDelivered(msgspec.Struct, frozen=True, array_like=True, tag=2):
    due_ms: int
    lease_ms: int
    fresh: list[FirstDeliveries]
    again: JobOffsets


class JobsAcked(msgspec.Struct, frozen=True, array_like=True, tag=3):
    jobs: JobOffsets


class JobsReturned(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A worker returned jobs."""

    due_ms: int
    delay_ms: int
    jobs: JobOffsets


class LeasesExtended(msgspec.Struct, frozen=True, array_like=True, tag=5):
    due_ms: int
    lease_ms: int
    jobs: JobOffsets


class DeadLettersIntended(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Exhausted jobs are about to be appended to the dead-letter topic."""

    topic_id: bytes
    ends: list[int]
    """End offsets of the topic's partitions: the letters of these jobs are at or after them."""
    expired: JobOffsets
    nacked: JobOffsets
    damaged: JobOffsets = []


class DeadLettersMoved(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The jobs of the intent are in the dead-letter topic, or were deleted meanwhile."""

    dead: JobOffsets
    removed: JobOffsets
    kept: JobOffsets = []
    """Jobs that the dead-letter topic refused: they are delayed, and then tried again."""
    due_ms: int = 0
    delay_ms: int = 0


class JobsRemoved(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Jobs were deleted from the topic before they were finished."""

    jobs: JobOffsets


class PartitionTruncated(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The partition ends at `end`, and was longer: a class below `fsync` lost its end."""

    partition: int
    end: int


class QueueStateSnapshot(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """The complete state."""

    boot_id: str
    generation: int
    counters: list[int]
    """acked, dead, delivered, removed, and damaged unless it is 0"""
    partitions: list[tuple[int, int, int, list[int]]]
    """Partition, frontier, forgotten, and its unfinished jobs: five numbers each."""
    ended: list[int]
    """Partition, offset and final delivery of jobs that were not acked at their first delivery."""
    intent: DeadLettersIntended | None
    released: list[int] = []
    """Partition, offset and number of releases of unfinished jobs that were released."""


class ReceiptsInvalidated(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Receipts issued before are not valid: deliveries that were answered may have been lost.

    This happens when the queue is new, and if a class below `fsync` may have lost its end.
    """

    generation: int


class JobsReleased(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """A worker returned jobs that it had not tried: the delivery does not count."""

    now_ms: int
    jobs: JobOffsets


class BatchDamaged(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The records from `offset` up to `end` cannot be decoded.

    Nobody can tell how many jobs they were. They count as one, which becomes a dead letter.
    """

    now_ms: int
    partition: int
    offset: int
    end: int


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
    | JobsReleased
    | BatchDamaged
)

_VERSIONS = [bytes([version]) for version in range(1, EVENT_VERSION + 1)]
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[QueueEvent] = msgspec.msgpack.Decoder(QueueEvent)


def encode_event(event: QueueEvent) -> bytes:
    return _VERSIONS[_is_new(event)] + _encoder.encode(event)


def _is_new(event: QueueEvent) -> bool:
    """Return whether releases that know only version 1 would misread an event."""
    match event:
        case JobsReleased() | BatchDamaged():
            return True
        case DeadLettersIntended():
            return bool(event.damaged)
        case QueueStateSnapshot():
            is_intent_new = event.intent is not None and _is_new(event.intent)
            return bool(event.counters[4:] or event.released) or is_intent_new
    return False


def decode_event(data: bytes) -> QueueEvent:
    """Decode an event; raises `UnknownFormat` or `CorruptData`."""
    if data[:1] not in _VERSIONS:
        version = data[0] if data else "none"
        raise UnknownFormat(f"queue event has version {version}, expected 1 to {EVENT_VERSION}")
    try:
        return _decoder.decode(memoryview(data)[1:])
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptData(f"invalid queue event: {error}") from error


def runs_of(offsets: list[int]) -> list[int]:
    """Return rising offsets as first and count of each run of consecutive ones."""
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
    """Return the offsets of `runs_of`."""
    if len(runs) == 2:
        return list(range(runs[0], runs[0] + runs[1]))
    return [
        offset
        for first, count in zip(runs[::2], runs[1::2], strict=True)
        for offset in range(first, first + count)
    ]


def group_jobs(positions: Iterable[JobPosition]) -> JobOffsets:
    """Group positions by partition, in their order."""
    jobs: dict[int, list[int]] = {}
    for partition, offset in positions:
        jobs.setdefault(partition, []).append(offset)
    return list(jobs.items())
