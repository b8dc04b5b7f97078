"""Maps errors to codes between peers, and codes back to errors.

The nearest listed ancestor of an error gives its code. In reverse, a code becomes an error that
says whether something may have been done: this decides whether a caller may repeat the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from millstream import errors
from millstream.protocols.peer.error_codes import PeerErrorCode

PEER_CODES: Mapping[type[errors.MillstreamError], PeerErrorCode] = MappingProxyType(
    {
        errors.MillstreamError: PeerErrorCode.UNKNOWN_SERVER_ERROR,
        errors.OutcomeUnknown: PeerErrorCode.OUTCOME_UNKNOWN,
        # The request is wrong.
        errors.RequestError: PeerErrorCode.REFUSED,
        errors.InvalidRequest: PeerErrorCode.INVALID_REQUEST,
        errors.MalformedRequest: PeerErrorCode.INVALID_REQUEST,
        errors.UnsupportedVersion: PeerErrorCode.UNSUPPORTED_VERSION,
        errors.UnknownLog: PeerErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        errors.UnknownTopic: PeerErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        errors.UnknownTopicId: PeerErrorCode.UNKNOWN_TOPIC_ID,
        errors.OffsetOutOfRange: PeerErrorCode.OFFSET_OUT_OF_RANGE,
        errors.InvalidBatch: PeerErrorCode.CORRUPT_MESSAGE,
        errors.BatchTooLarge: PeerErrorCode.TOO_LARGE,
        errors.FencedLeaderEpoch: PeerErrorCode.FENCED_LEADER_EPOCH,
        errors.UnknownLeaderEpoch: PeerErrorCode.UNKNOWN_LEADER_EPOCH,
        # The producer was overtaken, or lost its place.
        errors.ProducerFenced: PeerErrorCode.PRODUCER_FENCED,
        errors.InvalidProducerEpoch: PeerErrorCode.INVALID_PRODUCER_EPOCH,
        errors.UnknownProducer: PeerErrorCode.UNKNOWN_PRODUCER_ID,
        errors.InvalidTransactionState: PeerErrorCode.INVALID_TXN_STATE,
        errors.TransactionAborted: PeerErrorCode.TRANSACTION_ABORTABLE,
        errors.InvalidProducerMapping: PeerErrorCode.INVALID_PRODUCER_ID_MAPPING,
        errors.UnknownTransaction: PeerErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        errors.ConcurrentTransaction: PeerErrorCode.CONCURRENT_TRANSACTIONS,
        # The member of a group has to do something.
        errors.UnknownGroup: PeerErrorCode.GROUP_ID_NOT_FOUND,
        errors.UnknownMember: PeerErrorCode.UNKNOWN_MEMBER_ID,
        errors.IllegalGeneration: PeerErrorCode.ILLEGAL_GENERATION,
        # The caller may try again.
        errors.Unavailable: PeerErrorCode.UNAVAILABLE,
        errors.Busy: PeerErrorCode.BUSY,
        errors.Stopping: PeerErrorCode.STOPPING,
        errors.OutOfHops: PeerErrorCode.OUT_OF_HOPS,
        errors.LogClosed: PeerErrorCode.NOT_LEADER_OR_FOLLOWER,
        # An operator has to act.
        errors.LogOffline: PeerErrorCode.STORAGE_ERROR,
        errors.StorageFailed: PeerErrorCode.STORAGE_ERROR,
        errors.CorruptData: PeerErrorCode.STORAGE_ERROR,
    }
)

HANDSHAKE_REFUSALS = frozenset(
    {
        PeerErrorCode.UNSUPPORTED_VERSION,
        PeerErrorCode.DUPLICATE_NODE,
        PeerErrorCode.UNKNOWN_NODE,
        PeerErrorCode.WRONG_CLUSTER,
        PeerErrorCode.WRONG_NODE,
        PeerErrorCode.UNTRUSTED,
        PeerErrorCode.STOPPING,
        PeerErrorCode.BUSY,
    }
)
"""The codes with which a handshake can be refused."""

UNKNOWN_OUTCOMES = frozenset(
    {
        PeerErrorCode.UNKNOWN_SERVER_ERROR,
        PeerErrorCode.DEADLINE_EXCEEDED,
        PeerErrorCode.CANCELLED,
        PeerErrorCode.OUTCOME_UNKNOWN,
        # A write may have reached the disk before it failed.
        PeerErrorCode.STORAGE_ERROR,
    }
)
"""Codes after which something may have been done. All others say that nothing was."""

_ERRORS: Mapping[PeerErrorCode, type[errors.MillstreamError]] = {
    PeerErrorCode.UNKNOWN_TOPIC_OR_PARTITION: errors.UnknownTopic,
    PeerErrorCode.UNKNOWN_TOPIC_ID: errors.UnknownTopicId,
    PeerErrorCode.UNSUPPORTED_VERSION: errors.UnsupportedVersion,
    PeerErrorCode.INVALID_REQUEST: errors.InvalidRequest,
    PeerErrorCode.CORRUPT_MESSAGE: errors.InvalidBatch,
    PeerErrorCode.FENCED_LEADER_EPOCH: errors.FencedLeaderEpoch,
    PeerErrorCode.UNKNOWN_LEADER_EPOCH: errors.UnknownLeaderEpoch,
    PeerErrorCode.PRODUCER_FENCED: errors.ProducerFenced,
    PeerErrorCode.INVALID_PRODUCER_EPOCH: errors.InvalidProducerEpoch,
    PeerErrorCode.UNKNOWN_PRODUCER_ID: errors.UnknownProducer,
    PeerErrorCode.INVALID_TXN_STATE: errors.InvalidTransactionState,
    PeerErrorCode.TRANSACTION_ABORTABLE: errors.TransactionAborted,
    PeerErrorCode.INVALID_PRODUCER_ID_MAPPING: errors.InvalidProducerMapping,
    PeerErrorCode.TRANSACTIONAL_ID_NOT_FOUND: errors.UnknownTransaction,
    PeerErrorCode.CONCURRENT_TRANSACTIONS: errors.ConcurrentTransaction,
    PeerErrorCode.GROUP_ID_NOT_FOUND: errors.UnknownGroup,
    PeerErrorCode.UNKNOWN_MEMBER_ID: errors.UnknownMember,
    PeerErrorCode.ILLEGAL_GENERATION: errors.IllegalGeneration,
    PeerErrorCode.REFUSED: errors.RequestError,
}
"""Errors that a caller raises, by code. The others become `PeerUnavailable` or
`OutcomeUnknown`."""


def peer_code_of(error: errors.MillstreamError) -> PeerErrorCode:
    """Return the code of the error's nearest listed ancestor."""
    return next(PEER_CODES[kind] for kind in type(error).__mro__ if kind in PEER_CODES)


def peer_error_of(code: int, message: str) -> errors.MillstreamError:
    """Return the error for the code of a peer.

    A code of a newer release has no name here. Its outcome counts as unknown: that may cost a
    repetition, but never claims that nothing was done.
    """
    try:
        known = PeerErrorCode(code)
    except ValueError:
        return errors.OutcomeUnknown(f"error {code}: {message}")
    if (kind := _ERRORS.get(known)) is not None:
        return kind(message)
    if known in UNKNOWN_OUTCOMES:
        return errors.OutcomeUnknown(f"{known.name}: {message}")
    return errors.PeerUnavailable(f"{known.name}: {message}", code=known)
