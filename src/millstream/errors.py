"""Every error that Millstream raises, sorted by who has to act.

One root and a handful of one-line classes. Deep code raises one of these; each door translates
them once, in a table. A message says what was found and what is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class MillstreamError(Exception):
    """The root: catch this to catch all that Millstream raises on purpose."""


# The caller has to change the request.


class RequestError(MillstreamError):
    """The request cannot be met as it is; repeating it will not help."""


class InvalidConfig(RequestError):
    """A setting has a value that is not allowed."""


class InvalidPipeline(RequestError):
    """A pipeline is described in a way in which it cannot run."""


class InvalidName(RequestError):
    """A topic name or a partition number cannot be one."""


class InvalidBatch(RequestError):
    """The bytes handed in are not one whole, sound batch."""


class BatchTooLarge(RequestError):
    """A batch exceeds the limit of its log."""


class LogFull(RequestError):
    """The log holds as much as it may, and is set to refuse what does not fit."""


class InvalidAddress(RequestError):
    """No batch starts at the given physical address."""


class UnknownLog(RequestError):
    """There is no such topic or partition."""


class UnknownTopic(RequestError):
    """There is no topic of that name, or it has no such partition."""


class UnknownTopicId(RequestError):
    """There is no topic with that id; one of the same name may have been made anew."""


class TopicExists(RequestError):
    """There is a topic of that name already."""


class InvalidPartitions(RequestError):
    """A topic cannot have that many partitions, or not fewer than it has."""


class InvalidReplication(RequestError):
    """A partition cannot have that many replicas, or not on these nodes."""


class UnknownQueue(RequestError):
    """There is no queue of that name; there may be a topic of that name."""


class StaleReceipt(RequestError):
    """Some receipts are not the newest of their jobs: these belong to others now, or ended."""

    def __init__(self, receipts: Sequence[str], *, done: int = 0) -> None:
        shown = ", ".join(receipts[:3])
        super().__init__(f"{len(receipts)} receipts are stale: {shown}; for {done} it was done")
        self.receipts = tuple(receipts)
        self.done = done
        """How many of the others that came along took effect."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _stale_receipt, (self.receipts, self.done)


def _stale_receipt(receipts: Sequence[str], done: int) -> StaleReceipt:
    """Make the error anew in the process that it was sent to."""
    return StaleReceipt(receipts, done=done)


class UnknownStream(RequestError):
    """There is no stream under that path, or it has expired."""


class StreamGone(RequestError):
    """The stream was deleted, or its first records were; its path stays taken by its forks."""


class StreamExists(RequestError):
    """There is a stream or a topic in that place already, and it is not what was asked for."""


class StreamMismatch(RequestError):
    """What is appended is of another type than the stream, or not newer than what came before."""


class StreamClosed(RequestError):
    """The stream was closed, and takes nothing more."""

    def __init__(self, path: str, end: int) -> None:
        super().__init__(f"stream {path[:300]!r} is closed, and ends at {end}")
        self.path = path
        self.end = end
        """Where it ends, as an offset of the stream."""

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamClosed, (self.path, self.end)


class StaleStreamProducer(RequestError):
    """A newer instance of the stream's producer took over."""

    def __init__(self, producer: str, *, found: int, newest: int) -> None:
        super().__init__(f"producer {producer!r} has epoch {found}, newest is {newest}")
        self.producer = producer
        self.found = found
        self.newest = newest

    def __reduce__(self) -> tuple[Any, ...]:
        return _stale_stream_producer, (self.producer, self.found, self.newest)


def _stale_stream_producer(producer: str, found: int, newest: int) -> StaleStreamProducer:
    """Make the error anew in the process that it was sent to."""
    return StaleStreamProducer(producer, found=found, newest=newest)


class StreamProducerGap(RequestError):
    """Something that the stream's producer appended before is missing."""

    def __init__(self, producer: str, *, expected: int, found: int) -> None:
        super().__init__(f"producer {producer!r} sent number {found}, expected is {expected}")
        self.producer = producer
        self.expected = expected
        self.found = found

    def __reduce__(self) -> tuple[Any, ...]:
        return _stream_producer_gap, (self.producer, self.expected, self.found)


def _stream_producer_gap(producer: str, expected: int, found: int) -> StreamProducerGap:
    """Make the error anew in the process that it was sent to."""
    return StreamProducerGap(producer, expected=expected, found=found)


class MalformedRequest(RequestError):
    """A request's bytes are not what its protocol says they must be."""


class UnsupportedVersion(RequestError):
    """The request is of a version, or of a kind, that is not spoken here."""


class InvalidRequest(RequestError):
    """The request is well formed, but what it says contradicts itself or the state of things."""


class InvalidRecord(RequestError):
    """The topic does not take this record: a key is missing, or it is not allowed there."""


class BadRecord(RequestError):
    """A record's value is not what its topic, or the reader, says that values are."""


class UnsupportedCompression(RequestError):
    """The batch is packed in a way that is not allowed where it goes."""


class InvalidTimestamp(RequestError):
    """A record's timestamp is further from the present than the topic allows."""


class InvalidRegex(RequestError):
    """A pattern cannot be compiled, or is too long."""


class FencedLeaderEpoch(RequestError):
    """The caller knows an older leader of the partition."""


class UnknownLeaderEpoch(RequestError):
    """The caller knows a newer leader of the partition than this node does."""


# The caller is a producer that was overtaken, or lost its place.


class ProducerFenced(RequestError):
    """A newer instance of the same transactional producer took over."""


class InvalidProducerEpoch(RequestError):
    """The producer's epoch is older than the newest that was seen."""


class UnknownProducer(RequestError):
    """Nothing is known of this producer any more."""


class OutOfOrderSequence(RequestError):
    """A batch does not follow the producer's batch before it."""


class InvalidTransactionState(RequestError):
    """What was asked does not fit the state of the transaction."""


class TransactionAborted(RequestError):
    """The transaction was not in order and has to be aborted by its producer."""


class InvalidTransactionTimeout(RequestError):
    """A transaction may not last that long."""


class InvalidProducerMapping(RequestError):
    """The transactional id belongs to another producer id."""


class UnknownTransaction(RequestError):
    """There is no such transactional id."""


# The caller is a member of a group, and has to join it again or differently.


class InvalidGroup(RequestError):
    """A group cannot be called so, or is of another kind."""


class UnknownGroup(RequestError):
    """There is no such group."""


class GroupNotEmpty(RequestError):
    """The group has members, and that is in the way."""


class GroupSubscribed(RequestError):
    """The group is subscribed to the topic, so its offsets stay."""


class UnknownMember(RequestError):
    """The group does not have this member, or not any more."""


class MemberIdNeeded(RequestError):
    """The member has to join again with the id that it was given."""

    def __init__(self, member_id: str) -> None:
        super().__init__(f"join again as {member_id!r}")
        self.member_id = member_id

    def __reduce__(self) -> tuple[Any, ...]:
        return MemberIdNeeded, (self.member_id,)


class FencedInstance(RequestError):
    """Another member has taken over this static member's instance id."""


class UnreleasedInstance(RequestError):
    """The static member's instance id is still in use."""


class IllegalGeneration(RequestError):
    """The caller speaks of a generation of the group that is not the present one."""


class RebalanceInProgress(RequestError):
    """The group is being divided anew; join it again."""


class InconsistentProtocol(RequestError):
    """The member shares no assignment strategy with the rest of the group."""


class InvalidSessionTimeout(RequestError):
    """A session may not be that short, or that long."""


class FencedMemberEpoch(RequestError):
    """The member's epoch is not the one that the group has for it; it has to join again."""


class StaleMemberEpoch(RequestError):
    """The member's epoch has moved on; it has to learn the new one first."""


class UnsupportedAssignor(RequestError):
    """The group's division cannot be made by the named strategy."""


class GroupFull(RequestError):
    """The group has as many members as it may have."""


class OffsetMetadataTooLarge(RequestError):
    """What was to be remembered beside an offset is too long."""


class OffsetOutOfRange(RequestError):
    """The offset lies before the first or after the last that can be read."""

    def __init__(self, offset: int, *, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside [{start}, {end}]")
        self.offset = offset
        self.start = start
        self.end = end

    def __reduce__(self) -> tuple[Any, ...]:
        return _out_of_range, (self.offset, self.start, self.end)


def _out_of_range(offset: int, start: int, end: int) -> OffsetOutOfRange:
    """Make the error anew in the process that it was sent to."""
    return OffsetOutOfRange(offset, start=start, end=end)


class DataLost(RequestError):
    """Records that were to be read are gone, and whoever reads wants to know."""


# The caller may wait and try again.


class Unavailable(MillstreamError):
    """Nothing was written; the same request may succeed later."""


class WouldBlock(Unavailable):
    """The append was not admitted: it would have to wait, and was told not to."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"append would block: {reason}")
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return WouldBlock, (self.reason,)


class DeadlineExceeded(Unavailable):
    """The append was not admitted within its deadline."""


class Busy(Unavailable):
    """The same thing is being changed already; try again in a moment."""


class QuotaExceeded(Unavailable):
    """The client used more than its quota allows, and has to wait before it may use more."""

    def __init__(self, quota: str, throttle_ms: int) -> None:
        super().__init__(f"{quota} is used up, try again in {throttle_ms} ms")
        self.quota = quota
        """By the name that Kafka has for it."""
        self.throttle_ms = throttle_ms
        """How long until nothing is owed any more."""

    def __reduce__(self) -> tuple[Any, ...]:
        return QuotaExceeded, (self.quota, self.throttle_ms)


class ConcurrentTransaction(Unavailable):
    """The transaction before is still being ended."""


class UnstableOffset(Unavailable):
    """An offset is part of a transaction that has not ended yet."""


class Stopping(Unavailable):
    """The node is stopping, and takes nothing new."""


class DiskFull(Unavailable):
    """The disk has no room. Reads go on; writes resume by themselves when space returns."""


# The caller is a client, and the node at the other end is in its way.


class NodeUnreachable(MillstreamError):
    """A node cannot be reached, hung up, or did not answer in time."""

    def __init__(self, address: str, reason: str, *, may_be_done: bool = False) -> None:
        doubt = "; what was asked may have been done" if may_be_done else ""
        super().__init__(f"{address}: {reason}{doubt}")
        self.address = address
        self.reason = reason
        self.may_be_done = may_be_done
        """Whether a request was on its way. Otherwise nothing of it can have taken effect."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unreachable, (self.address, self.reason, self.may_be_done)


def _unreachable(address: str, reason: str, may_be_done: bool) -> NodeUnreachable:  # noqa: FBT001 - as it was pickled.
    """Make the error anew in the process that it was sent to."""
    return NodeUnreachable(address, reason, may_be_done=may_be_done)


class NodeRefused(MillstreamError):
    """A node refused a request for a reason that has no error of its own here."""

    def __init__(self, code: int, name: str, message: str) -> None:
        super().__init__(f"{name} ({code}): {message}")
        self.code = code
        self.name = name
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return NodeRefused, (self.code, self.name, self.message)


class MalformedAnswer(MillstreamError):
    """What a node answered is not what its protocol says it must be."""


# An operator has to act.


class LogOffline(MillstreamError):
    """The log takes no appends until it was closed, opened again and checked."""


class LogClosed(MillstreamError):
    """The log or its store was closed."""


class StoreLocked(MillstreamError):
    """Another process has this data directory open."""


class StorageFailed(MillstreamError):
    """The operating system failed a call on which the store depends."""


class SparkMissing(MillstreamError):
    """PySpark, or the Java that it runs on, is not installed here."""


class SparkFailed(MillstreamError):
    """What Spark was to do did not come to its end; what it had finished is kept."""


class UnknownFormat(MillstreamError):
    """A file is of a version that this release does not know; it was left untouched."""


# Data is damaged.


class CorruptData(MillstreamError):
    """Stored bytes are not what was written."""


class CorruptBatch(CorruptData):
    """A batch is cut short, fails its checksum or contradicts its neighbours."""


class CorruptFile(CorruptData):
    """An index, seal or description is damaged, or a segment lacks bytes that it must have."""
