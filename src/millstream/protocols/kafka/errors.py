"""Maps errors to Kafka's codes, and codes to errors for our own client.

One table: the nearest listed ancestor of an error gives its code. Code that raises an error knows
nothing of Kafka; code that answers knows nothing of the reason. In reverse, the table gives our own
client the error that a node meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from millstream import errors
from millstream.protocols.kafka.error_codes import ErrorCode

CODES: Mapping[type[errors.MillstreamError], ErrorCode] = MappingProxyType(
    {
        errors.MillstreamError: ErrorCode.UNKNOWN_SERVER_ERROR,
        # The request is wrong.
        errors.RequestError: ErrorCode.INVALID_REQUEST,
        errors.InvalidRequest: ErrorCode.INVALID_REQUEST,
        errors.MalformedRequest: ErrorCode.INVALID_REQUEST,
        errors.UnsupportedVersion: ErrorCode.UNSUPPORTED_VERSION,
        errors.InvalidConfig: ErrorCode.INVALID_CONFIG,
        errors.InvalidName: ErrorCode.INVALID_TOPIC_EXCEPTION,
        errors.InvalidPartitions: ErrorCode.INVALID_PARTITIONS,
        errors.InvalidReplication: ErrorCode.INVALID_REPLICATION_FACTOR,
        errors.InvalidAssignment: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        errors.NoReassignment: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        errors.ElectionNotNeeded: ErrorCode.ELECTION_NOT_NEEDED,
        errors.TopicExists: ErrorCode.TOPIC_ALREADY_EXISTS,
        errors.UnknownLog: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        errors.UnknownTopic: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        errors.UnknownTopicId: ErrorCode.UNKNOWN_TOPIC_ID,
        errors.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
        errors.FencedLeaderEpoch: ErrorCode.FENCED_LEADER_EPOCH,
        errors.UnknownLeaderEpoch: ErrorCode.UNKNOWN_LEADER_EPOCH,
        errors.InvalidRegex: ErrorCode.INVALID_REGULAR_EXPRESSION,
        # The caller is not known, or has no right to do this.
        errors.NotAuthenticated: ErrorCode.SASL_AUTHENTICATION_FAILED,
        errors.AccessDenied: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        errors.TopicAccessDenied: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        errors.GroupAccessDenied: ErrorCode.GROUP_AUTHORIZATION_FAILED,
        errors.ClusterAccessDenied: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        errors.TransactionalIdAccessDenied: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        errors.UnknownCredential: ErrorCode.RESOURCE_NOT_FOUND,
        # The records are wrong.
        errors.InvalidBatch: ErrorCode.CORRUPT_MESSAGE,
        errors.BatchTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
        errors.LogFull: ErrorCode.POLICY_VIOLATION,
        errors.CapExceeded: ErrorCode.POLICY_VIOLATION,
        errors.InvalidRecord: ErrorCode.INVALID_RECORD,
        errors.UnsupportedCompression: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        errors.InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
        # The producer was overtaken, or lost its place.
        errors.ProducerFenced: ErrorCode.PRODUCER_FENCED,
        errors.InvalidProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
        errors.UnknownProducer: ErrorCode.UNKNOWN_PRODUCER_ID,
        errors.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        errors.InvalidTransactionState: ErrorCode.INVALID_TXN_STATE,
        errors.TransactionAborted: ErrorCode.TRANSACTION_ABORTABLE,
        errors.InvalidTransactionTimeout: ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        errors.InvalidProducerMapping: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        errors.UnknownTransaction: ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        errors.ConcurrentTransaction: ErrorCode.CONCURRENT_TRANSACTIONS,
        # The member of a group has to do something.
        errors.InvalidGroup: ErrorCode.INVALID_GROUP_ID,
        errors.UnknownGroup: ErrorCode.GROUP_ID_NOT_FOUND,
        errors.GroupNotEmpty: ErrorCode.NON_EMPTY_GROUP,
        errors.GroupSubscribed: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        errors.GroupFull: ErrorCode.GROUP_MAX_SIZE_REACHED,
        errors.UnknownMember: ErrorCode.UNKNOWN_MEMBER_ID,
        errors.MemberIdNeeded: ErrorCode.MEMBER_ID_REQUIRED,
        errors.FencedInstance: ErrorCode.FENCED_INSTANCE_ID,
        errors.UnreleasedInstance: ErrorCode.UNRELEASED_INSTANCE_ID,
        errors.IllegalGeneration: ErrorCode.ILLEGAL_GENERATION,
        errors.RebalanceInProgress: ErrorCode.REBALANCE_IN_PROGRESS,
        errors.InconsistentProtocol: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        errors.InvalidSessionTimeout: ErrorCode.INVALID_SESSION_TIMEOUT,
        errors.FencedMemberEpoch: ErrorCode.FENCED_MEMBER_EPOCH,
        errors.StaleMemberEpoch: ErrorCode.STALE_MEMBER_EPOCH,
        errors.UnsupportedAssignor: ErrorCode.UNSUPPORTED_ASSIGNOR,
        errors.OffsetMetadataTooLarge: ErrorCode.OFFSET_METADATA_TOO_LARGE,
        errors.UnstableOffset: ErrorCode.UNSTABLE_OFFSET_COMMIT,
        # The client may try again: these codes are the ones that all clients retry.
        errors.Unavailable: ErrorCode.REQUEST_TIMED_OUT,
        errors.Busy: ErrorCode.CONCURRENT_TRANSACTIONS,
        errors.QuotaExceeded: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        errors.Stopping: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        errors.NotLeader: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        errors.LeaderNotAvailable: ErrorCode.LEADER_NOT_AVAILABLE,
        errors.NoEligibleLeader: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        errors.NotEnoughReplicas: ErrorCode.NOT_ENOUGH_REPLICAS,
        errors.NotCoordinator: ErrorCode.NOT_COORDINATOR,
        errors.CoordinatorLoading: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        errors.OffsetNotAvailable: ErrorCode.OFFSET_NOT_AVAILABLE,
        errors.RecordsInRepair: ErrorCode.KAFKA_STORAGE_ERROR,
        errors.TierUnavailable: ErrorCode.KAFKA_STORAGE_ERROR,
        errors.OutcomeUnknown: ErrorCode.REQUEST_TIMED_OUT,
        errors.NotLeaderAnymore: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        errors.NotCoordinatorAnymore: ErrorCode.NOT_COORDINATOR,
        # An operator has to act; clients keep retrying.
        errors.DiskFull: ErrorCode.KAFKA_STORAGE_ERROR,
        errors.LogOffline: ErrorCode.KAFKA_STORAGE_ERROR,
        errors.LogClosed: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        errors.StorageFailed: ErrorCode.KAFKA_STORAGE_ERROR,
        errors.CorruptData: ErrorCode.KAFKA_STORAGE_ERROR,
        # Clients tell their user, instead of trying again forever.
        errors.DamagedRecords: ErrorCode.CORRUPT_MESSAGE,
    }
)


def code_of(error: errors.MillstreamError) -> ErrorCode:
    """Return the code of the error's nearest listed ancestor."""
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)


_PREFERRED: Mapping[ErrorCode, type[errors.MillstreamError]] = {
    ErrorCode.CORRUPT_MESSAGE: errors.InvalidBatch,
    ErrorCode.INVALID_REQUEST: errors.InvalidRequest,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: errors.UnknownTopic,
    ErrorCode.CONCURRENT_TRANSACTIONS: errors.ConcurrentTransaction,
    ErrorCode.NOT_COORDINATOR: errors.NotCoordinator,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: errors.ClusterAccessDenied,
}
"""Codes that several errors share, with the error that a client raises."""

_ONE_WAY = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,  # Says nothing.
        ErrorCode.POLICY_VIOLATION,  # Of Kafka, any policy of its operator.
        ErrorCode.REQUEST_TIMED_OUT,  # Of Kafka, also after something was written.
        ErrorCode.OFFSET_OUT_OF_RANGE,  # Needs numbers that a code does not bring.
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,  # The same.
        ErrorCode.MEMBER_ID_REQUIRED,
    }
)
"""Codes that map to no error of ours when a node sends them."""


def _backwards() -> dict[ErrorCode, type[errors.MillstreamError]]:
    count = Counter(CODES.values())
    single = {code: kind for kind, code in CODES.items() if count[code] == 1}
    return {code: kind for code, kind in {**single, **_PREFERRED}.items() if code not in _ONE_WAY}


ERRORS: Mapping[ErrorCode, type[errors.MillstreamError]] = MappingProxyType(_backwards())
"""Errors that a client raises, by code. All other codes become `NodeRefused`."""


def error_of(code: int, message: str) -> errors.MillstreamError:
    """Return the error for a code from a node; a code of a newer Kafka has no name here."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return errors.NodeRefused(code, "UNKNOWN", message)
    if (kind := ERRORS.get(known)) is not None:
        return kind(message)
    return errors.NodeRefused(code, known.name, message)
