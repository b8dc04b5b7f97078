"""Histories of loads: what clients were told, and what readers see afterwards."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias


class SeenRecord(NamedTuple):
    """A record as a consumer sees it."""

    partition: int
    offset: int
    value: bytes


class SeenBatch(NamedTuple):
    """A batch as it is stored, also of an aborted transaction."""

    partition: int
    first: int
    last: int
    """The last offset of the batch, inclusive."""
    is_control: bool
    """Whether it is the end of a transaction, or a decision about deletion or compaction."""


class TopicContent(NamedTuple):
    """Everything that is readable of a topic, partition by partition, in the order of offsets."""

    records: Sequence[SeenRecord]
    """What a consumer with `read_committed` sees."""
    batches: Sequence[SeenBatch]
    """All batches."""


class SentRecord(NamedTuple):
    partition: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteHistory:
    """Records with different values that one client sent, without transactions."""

    topic: str
    sent: Sequence[SentRecord]
    """All records, in the order in which they were sent."""
    acknowledged: Sequence[SeenRecord]
    """Those that were acknowledged, with the offsets that the client was told."""
    content: TopicContent


class Outcome(enum.Enum):
    """What the client of a transaction was told."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionHistory:
    """Transactions, each of which wrote one value of its own to all of the partitions."""

    topic: str
    partitions: int
    outcomes: Mapping[bytes, Outcome]
    """By value."""
    content: TopicContent


class ObservedCommit(NamedTuple):
    """A committed offset that a client was told."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHistory:
    """A group whose only member reads a topic from its start, and commits what it has read."""

    group: str
    seen: Sequence[SeenRecord]
    """All records that the member was given, in that order."""
    committed: Sequence[ObservedCommit]
    """Committed offsets that were acknowledged, or returned when they were asked for, in order."""
    content: TopicContent


class JobDelivery(NamedTuple):
    job: str
    number: int
    """The first delivery of a job is number 1."""


class JobCounts(NamedTuple):
    """The jobs of a queue by state, as its coordinator counts them."""

    enqueued: int
    acked: int
    ready: int
    leased: int
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHistory:
    """Jobs with different names, put and completed until none was left."""

    queue: str
    sent: Sequence[str]
    """All jobs, also those whose put failed."""
    put: Sequence[str]
    """Jobs whose put was acknowledged."""
    deliveries: Sequence[JobDelivery]
    completed: Sequence[JobDelivery]
    """Deliveries whose acknowledgement was answered with success."""
    unanswered: Sequence[JobDelivery]
    """Deliveries whose acknowledgement failed, so that it is not known whether it was done."""
    counts: JobCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHistory:
    """The numbers from 0 on, appended to a stream one after the other by one producer."""

    stream: str
    sent: int
    acknowledged: int
    """How many of them were acknowledged."""
    content: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchHistory:
    """A live connection that reads a topic from its start, and continues after interruptions."""

    topic: str
    seen: Sequence[SeenRecord]
    """What it was sent, in that order; values are not kept."""
    content: TopicContent


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyHistory:
    """A topic to which all records of another one with different values were copied."""

    topic: str
    source: Sequence[SeenRecord]
    content: TopicContent


History: TypeAlias = (
    WriteHistory
    | TransactionHistory
    | GroupHistory
    | QueueHistory
    | StreamHistory
    | WatchHistory
    | CopyHistory
)
