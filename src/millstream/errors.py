"""All errors that Millstream raises, grouped by who has to act.

One root class and many small ones. Inner code raises one of these; each server translates them
once, in a table. A message says what must hold and what was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, get_args

BackpressureKind: TypeAlias = Literal["log", "store", "sealing", "full", "limit", "quota"]
"""Why a write has to wait or was refused: too many bytes of this log, or of all logs, wait for the
disk; two segments wait to be sealed; the disk is full; the log has reached its limit and rejects;
the client exceeded its quota.

The same words are in errors (`kind`), in metrics (label `reason`) and in HTTP responses
(`detail.kind`).
"""

BACKPRESSURE_KINDS: tuple[BackpressureKind, ...] = get_args(BackpressureKind)


class MillstreamError(Exception):
    """Base class of all errors that Millstream raises on purpose."""


E = TypeVar("E", bound=BaseException)


def again(error: E) -> E:
    """Return a stored error, to be raised again, without the frames of earlier times.

    Each time that an error is raised, the frames that it passes are added to it. They would keep
    alive what their callers had, such as batches, for as long as the error is stored.
    """
    return error.with_traceback(None)


# The caller has to change the request.


class RequestError(MillstreamError):
    """The request cannot be fulfilled as it is; repeating it will not help."""


class InvalidConfig(RequestError):
    """A setting has an invalid value."""


class InvalidPipeline(RequestError):
    """A pipeline definition is invalid, so the pipeline cannot run."""


class InvalidName(RequestError):
    """A topic name or partition number is invalid."""


class InvalidBatch(RequestError):
    """The bytes are not exactly one well-formed batch."""


class BatchTooLarge(RequestError):
    """A batch exceeds the size limit of its log."""


class LogFull(RequestError):
    """The log is at its size limit, and is configured to reject new records."""

    kind: ClassVar[BackpressureKind] = "limit"


class CapExceeded(RequestError):
    """The client has as many topics or partitions as the operator allows, or all clients have."""


class InvalidAddress(RequestError):
    """No batch starts at the given physical address."""


class UnknownLog(RequestError):
    """There is no such topic or partition."""


class UnknownTopic(RequestError):
    """There is no topic with that name, or it has no such partition."""


class UnknownTopicId(RequestError):
    """There is no topic with that id; the topic may have been deleted and created again."""


class TopicExists(RequestError):
    """A topic with that name exists already."""


class InvalidPartitions(RequestError):
    """The number of partitions is out of range, or lower than the current one."""


class InvalidReplication(RequestError):
    """The replication factor or the assignment of replicas is invalid."""


class InvalidAssignment(RequestError):
    """The nodes that were chosen for the replicas of a partition are not possible."""


class NoReassignment(RequestError):
    """The partition is not being reassigned, so there is nothing to cancel."""


class ElectionNotNeeded(RequestError):
    """The partition has the leader that it should have."""


class NotAuthenticated(RequestError):
    """The caller has not logged in, or its credential is not valid."""


class AccessDenied(RequestError):
    """The caller may not do this."""


class TopicAccessDenied(AccessDenied):
    """The caller may not do this to the topic."""


class GroupAccessDenied(AccessDenied):
    """The caller may not do this to the group or queue."""


class ClusterAccessDenied(AccessDenied):
    """The caller may not do this to the cluster."""


class TransactionalIdAccessDenied(AccessDenied):
    """The caller may not use the transactional id."""


class UnknownCredential(RequestError):
    """There is no such token, or the user has no password."""


class UnknownQueue(RequestError):
    """There is no queue with that name; there may be a topic with that name."""


class StaleReceipt(RequestError):
    """Some receipts are outdated: their jobs were leased again, or are finished."""

    def __init__(self, receipts: Sequence[str], *, done: int = 0) -> None:
        shown = ", ".join(receipts[:3])
        stale = "1 receipt is" if len(receipts) == 1 else f"{len(receipts)} receipts are"
        super().__init__(f"{stale} stale: {shown}; {done} succeeded")
        self.receipts = tuple(receipts)
        self.done = done
        """How many of the other receipts in the request succeeded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _stale_receipt, (self.receipts, self.done)


def _stale_receipt(receipts: Sequence[str], done: int) -> StaleReceipt:
    """Recreate the error in the process that unpickles it."""
    return StaleReceipt(receipts, done=done)


class UnknownStream(RequestError):
    """There is no stream at that path, or it has expired."""


class StreamGone(RequestError):
    """The stream was deleted, or its first records were; its forks keep the path in use."""


class StreamExists(RequestError):
    """A stream or topic with another configuration exists at that path already."""


class StreamMismatch(RequestError):
    """The appended data has another content type than the stream, or its sequence is not newer."""


class StreamClosed(RequestError):
    """The stream is closed and accepts no more appends."""

    def __init__(self, path: str, end: int, mark: int = 0) -> None:
        super().__init__(f"stream {path[:300]!r} is closed at offset {end}")
        self.path = path
        self.end = end
        """The end of the stream, as an offset of the stream."""
        self.mark = mark
        """Mark of that offset; see `StreamRow.mark_at`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamClosed, (self.path, self.end, self.mark)


class StaleStreamProducer(RequestError):
    """A newer instance of the stream's producer took over."""

    def __init__(self, producer: str, *, found: int, newest: int) -> None:
        super().__init__(f"epoch of producer {producer!r} must be at least {newest}, got {found}")
        self.producer = producer
        self.found = found
        self.newest = newest

    def __reduce__(self) -> tuple[Any, ...]:
        return _stale_stream_producer, (self.producer, self.found, self.newest)


def _stale_stream_producer(producer: str, found: int, newest: int) -> StaleStreamProducer:
    """Recreate the error in the process that unpickles it."""
    return StaleStreamProducer(producer, found=found, newest=newest)


class StreamProducerGap(RequestError):
    """An earlier append of the stream's producer is missing."""

    def __init__(self, producer: str, *, expected: int, found: int) -> None:
        super().__init__(
            f"sequence of producer {producer!r} must be at most {expected}, got {found}"
        )
        self.producer = producer
        self.expected = expected
        self.found = found

    def __reduce__(self) -> tuple[Any, ...]:
        return _stream_producer_gap, (self.producer, self.expected, self.found)


def _stream_producer_gap(producer: str, expected: int, found: int) -> StreamProducerGap:
    """Recreate the error in the process that unpickles it."""
    return StreamProducerGap(producer, expected=expected, found=found)


class MalformedRequest(RequestError):
    """The bytes of a request violate its protocol."""


class UnsupportedVersion(RequestError):
    """The type or the version of the request is not supported."""


class InvalidRequest(RequestError):
    """The request is well-formed, but contradicts itself or the current state."""


class InvalidRecord(RequestError):
    """The topic does not accept this record: a key is missing, or it is not allowed there."""


class BadRecord(RequestError):
    """A record's value does not match the value format of its topic or reader."""


class UnsupportedCompression(RequestError):
    """The topic or the request version does not allow the compression codec of the batch."""


class InvalidTimestamp(RequestError):
    """A record's timestamp is further from the current time than the topic allows."""


class InvalidRegex(RequestError):
    """A regular expression cannot be compiled, or is too long."""


class FencedLeaderEpoch(RequestError):
    """The caller's leader epoch is older than that of the partition."""


class UnknownLeaderEpoch(RequestError):
    """The caller's leader epoch is newer than the one that this node knows."""


# The caller is a producer that was fenced, or whose state was lost.


class ProducerFenced(RequestError):
    """A newer instance of the same transactional producer took over."""


class InvalidProducerEpoch(RequestError):
    """The producer's epoch is older than the newest one seen."""


class UnknownProducer(RequestError):
    """The state of this producer is unknown or has expired."""


class OutOfOrderSequence(RequestError):
    """The sequence of a batch does not follow the producer's previous batch."""


class InvalidTransactionState(RequestError):
    """The request is not allowed in the current state of the transaction."""


class TransactionAborted(RequestError):
    """The transaction failed, and its producer has to abort it."""


class InvalidTransactionTimeout(RequestError):
    """The transaction timeout exceeds the maximum."""


class InvalidProducerMapping(RequestError):
    """The transactional id belongs to another producer id."""


class UnknownTransaction(RequestError):
    """There is no such transactional id."""


# The caller is a member of a group, and has to join it again or differently.


class InvalidGroup(RequestError):
    """The group id is invalid, or the group has another type."""


class UnknownGroup(RequestError):
    """There is no such group."""


class GroupNotEmpty(RequestError):
    """The group still has members."""


class GroupSubscribed(RequestError):
    """The group is subscribed to the topic, so its offsets cannot be deleted."""


class UnknownMember(RequestError):
    """The group has no such member, or no longer has it."""


class MemberIdNeeded(RequestError):
    """The member has to join again with the id that it was assigned."""

    def __init__(self, member_id: str) -> None:
        super().__init__(f"join again as {member_id!r}")
        self.member_id = member_id

    def __reduce__(self) -> tuple[Any, ...]:
        return MemberIdNeeded, (self.member_id,)


class FencedInstance(RequestError):
    """Another member took over this static member's instance id."""


class UnreleasedInstance(RequestError):
    """The static member's instance id is still in use."""


class IllegalGeneration(RequestError):
    """The group generation in the request is not the current one."""


class RebalanceInProgress(RequestError):
    """The group is rebalancing; join it again."""


class InconsistentProtocol(RequestError):
    """The member supports no assignment strategy that all other members support."""


class InvalidSessionTimeout(RequestError):
    """The session timeout is out of range."""


class FencedMemberEpoch(RequestError):
    """The member's epoch is not the one that the group has for it; it has to join again."""


class StaleMemberEpoch(RequestError):
    """The member's epoch is outdated; it has to send a heartbeat to get the new one."""


class UnsupportedAssignor(RequestError):
    """The requested assignment strategy is not supported."""


class GroupFull(RequestError):
    """The group has reached its maximum number of members."""


class OffsetMetadataTooLarge(RequestError):
    """The metadata of a committed offset is too long."""


class OffsetOutOfRange(RequestError):
    """The offset is before the first or after the last readable one."""

    def __init__(self, offset: int, *, start: int, end: int) -> None:
        super().__init__(f"offset must be between {start} and {end}, got {offset}")
        self.offset = offset
        self.start = start
        self.end = end

    def __reduce__(self) -> tuple[Any, ...]:
        return _out_of_range, (self.offset, self.start, self.end)


def _out_of_range(offset: int, start: int, end: int) -> OffsetOutOfRange:
    """Recreate the error in the process that unpickles it."""
    return OffsetOutOfRange(offset, start=start, end=end)


class LeaseExpired(RequestError):
    """The lease on metadata has expired or was revoked, and the keys bound to it are deleted."""


class ReplicaMismatch(RequestError):
    """What a leader sent does not continue the log of its replica: the two have diverged."""

    def __init__(
        self, what: str, *, own: tuple[int, int, int], given: tuple[int, int, int]
    ) -> None:
        super().__init__(
            f"{what}: the replica is at offset {own[0]}, byte {own[2]} of segment {own[1]};"
            f" the slice is for offset {given[0]}, byte {given[2]} of segment {given[1]}"
        )
        self.what = what
        self.own = own
        """Offset, segment and position at which the replica continues."""
        self.given = given
        """The same of the slice."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _replica_mismatch, (self.what, self.own, self.given)


def _replica_mismatch(
    what: str, own: tuple[int, int, int], given: tuple[int, int, int]
) -> ReplicaMismatch:
    """Recreate the error in the process that unpickles it."""
    return ReplicaMismatch(what, own=own, given=given)


class DataLost(RequestError):
    """Records to be read were deleted, and the reader is configured to fail then."""


class LakeError(RequestError):
    """A table of a lake cannot be read or written, or does not belong to the topic."""


class LakeConflict(RequestError):
    """Another writer has moved the positions of the table. Nothing was committed."""


# The caller may wait and try again.


class Unavailable(MillstreamError):
    """Nothing was written; the same request may succeed later."""


class WouldBlock(Unavailable):
    """The append was not admitted: it would have to wait, and the caller asked not to."""

    def __init__(self, reason: str, kind: BackpressureKind | None = None) -> None:
        super().__init__(f"append would block: {reason}")
        self.reason = reason
        self.kind = kind
        """For what it would wait; None if the caller only knows the text."""

    def __reduce__(self) -> tuple[Any, ...]:
        return WouldBlock, (self.reason, self.kind)


class DeadlineExceeded(Unavailable):
    """The request was not admitted before its deadline: the disk or memory is short."""

    def __init__(self, message: str, kind: BackpressureKind | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        """For what it waited, if that is known."""

    def __reduce__(self) -> tuple[Any, ...]:
        return DeadlineExceeded, (str(self), self.kind)


class Busy(Unavailable):
    """A concurrent change is in progress; try again in a moment."""


class QuotaExceeded(Unavailable):
    """The client exceeded its quota, and has to wait before its next request."""

    kind: ClassVar[BackpressureKind] = "quota"

    def __init__(self, quota: str, throttle_ms: int) -> None:
        super().__init__(f"{quota} is exceeded, try again in {throttle_ms} ms")
        self.quota = quota
        """Kafka's name of the quota."""
        self.throttle_ms = throttle_ms
        """Time until the client is within its quota again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return QuotaExceeded, (self.quota, self.throttle_ms)


class ConcurrentTransaction(Unavailable):
    """The previous transaction is still being completed."""


class UnstableOffset(Unavailable):
    """The offset was committed in a transaction that is still open."""


class Stopping(Unavailable):
    """The node is shutting down and accepts no new requests."""


class NotLeader(Unavailable):
    """Another node leads the partition, or none does now."""

    def __init__(self, message: str, *, leader: int = -1, leader_epoch: int = -1) -> None:
        super().__init__(message)
        self.leader = leader
        """The node that leads, as far as this one knows; -1 if none does."""
        self.leader_epoch = leader_epoch

    def __reduce__(self) -> tuple[Any, ...]:
        return _not_leader, (type(self), str(self), self.leader, self.leader_epoch)


class LeaderNotAvailable(NotLeader):
    """No node leads the partition now."""


def _not_leader(kind: type[NotLeader], message: str, leader: int, leader_epoch: int) -> NotLeader:
    """Recreate the error in the process that unpickles it."""
    return kind(message, leader=leader, leader_epoch=leader_epoch)


class NoEligibleLeader(Unavailable):
    """The node that should lead the partition is not alive, or not in sync."""


class NotEnoughReplicas(Unavailable):
    """Fewer replicas are in sync than `min.insync.replicas`: nothing was written."""


class NotCoordinator(Unavailable):
    """Another node coordinates the group, transaction or queue, or none does now."""

    def __init__(self, message: str, *, coordinator: int = -1) -> None:
        super().__init__(message)
        self.coordinator = coordinator
        """The node that coordinates it, as far as this one knows; -1 if none does."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _not_coordinator, (str(self), self.coordinator)


def _not_coordinator(message: str, coordinator: int) -> NotCoordinator:
    """Recreate the error in the process that unpickles it."""
    return NotCoordinator(message, coordinator=coordinator)


class CoordinatorLoading(Unavailable):
    """The node has become the coordinator, and is reading the state."""


class OffsetNotAvailable(Unavailable):
    """The replica does not have the records at the offset yet, or must not show them yet."""

    def __init__(self, message: str, *, end: int = -1) -> None:
        super().__init__(message)
        self.end = end
        """The end of what the replica can show; -1 if that is not known."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _offset_not_available, (str(self), self.end)


def _offset_not_available(message: str, end: int) -> OffsetNotAvailable:
    """Recreate the error in the process that unpickles it."""
    return OffsetNotAvailable(message, end=end)


class RecordsInRepair(Unavailable):
    """The records are damaged on this node, and are being copied from another replica."""


class OutOfHops(Unavailable):
    """A forwarded request has to be forwarded again, which is not allowed."""


class PeerUnavailable(Unavailable):
    """Another node of the cluster cannot be reached or refused a request; nothing was done."""

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code
        """The code of the refusal between peers; 0 if the request was not sent."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _peer_unavailable, (str(self), self.code)


def _peer_unavailable(message: str, code: int) -> PeerUnavailable:
    """Recreate the error in the process that unpickles it."""
    return PeerUnavailable(message, code=code)


class DiskFull(Unavailable):
    """The disk is full. Reads continue; writes resume when space is free again."""

    kind: ClassVar[BackpressureKind] = "full"


BACKPRESSURE_ERRORS = (WouldBlock, DeadlineExceeded, LogFull, QuotaExceeded, DiskFull)
"""The errors with a `kind` of backpressure."""


# The caller has to read what is stored before it does anything else.


class OutcomeUnknown(MillstreamError):
    """A change may or may not have been made: the connection failed before the response."""


class NotLeaderAnymore(OutcomeUnknown):
    """The node stopped leading the partition before the batch was on enough replicas."""


class NotCoordinatorAnymore(OutcomeUnknown):
    """The node stopped coordinating before the decision was on enough replicas."""


# Raised by clients: the node failed or refused.


class NodeUnreachable(MillstreamError):
    """A node cannot be reached, closed the connection, or did not respond in time."""

    def __init__(self, address: str, reason: str, *, may_be_done: bool = False) -> None:
        warning = "; the request may have been executed" if may_be_done else ""
        super().__init__(f"{address}: {reason}{warning}")
        self.address = address
        self.reason = reason
        self.may_be_done = may_be_done
        """Whether a request was in flight. Otherwise it cannot have had any effect."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unreachable, (self.address, self.reason, self.may_be_done)


def _unreachable(address: str, reason: str, may_be_done: bool) -> NodeUnreachable:  # noqa: FBT001 - as it was pickled.
    """Recreate the error in the process that unpickles it."""
    return NodeUnreachable(address, reason, may_be_done=may_be_done)


class NodeRefused(MillstreamError):
    """A node refused a request with an error code that has no class here."""

    def __init__(self, code: int, name: str, message: str) -> None:
        super().__init__(f"{name} ({code}): {message}")
        self.code = code
        self.name = name
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return NodeRefused, (self.code, self.name, self.message)


class MalformedAnswer(MillstreamError):
    """A response of a node violates its protocol."""


# An operator has to act.


class LogOffline(MillstreamError):
    """The log accepts no appends until it is closed, opened again and checked."""


class LogClosed(MillstreamError):
    """The log or its store is closed."""


class StoreLocked(MillstreamError):
    """Another process has this data directory open."""


class StorageFailed(MillstreamError):
    """The operating system failed a call on which the store depends."""


class SparkMissing(MillstreamError):
    """PySpark, or the Java that it runs on, is not installed."""


class SparkFailed(MillstreamError):
    """A Spark job failed; what it had finished is kept."""


class UnknownFormat(MillstreamError):
    """A file has a version that this release does not support; it was not changed."""


# Data is damaged.


class CorruptData(MillstreamError):
    """Stored bytes differ from what was written."""


class CorruptBatch(CorruptData):
    """A batch is truncated, fails its checksum or contradicts its neighbours."""


class DamagedRecords(CorruptData):
    """Some records of a log are damaged or missing. Those before and after them can be read."""

    def __init__(self, place: str, reason: str, *, from_offset: int, to_offset: int) -> None:
        lost = f"offset {from_offset} is" if from_offset == to_offset else ""
        lost = lost or f"offsets {from_offset} to {to_offset} are"
        super().__init__(f"{place}: {reason}; {lost} lost")
        self.place = place
        """The file, and the position in it."""
        self.reason = reason
        self.from_offset = from_offset
        """The first offset that cannot be read."""
        self.to_offset = to_offset
        """The last one."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _damaged_records, (self.place, self.reason, self.from_offset, self.to_offset)


def _damaged_records(place: str, reason: str, from_offset: int, to_offset: int) -> DamagedRecords:
    """Recreate the error in the process that unpickles it."""
    return DamagedRecords(place, reason, from_offset=from_offset, to_offset=to_offset)


class CorruptFile(CorruptData):
    """An index, seal or metadata file is damaged, or a segment is shorter than it must be."""
