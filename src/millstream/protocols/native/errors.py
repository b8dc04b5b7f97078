"""Maps errors to codes of the native protocol, and makes the bodies of error frames.

One table: the nearest listed ancestor of an error gives its code, as for the other servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from millstream import errors
from millstream.protocols.native.error_codes import RETRIABLE, NativeErrorCode
from millstream.protocols.native.operations import ErrorBody

CODES: Mapping[type[errors.MillstreamError], NativeErrorCode] = MappingProxyType(
    {
        errors.MillstreamError: NativeErrorCode.INTERNAL,
        # The request is wrong.
        errors.RequestError: NativeErrorCode.MALFORMED,
        errors.UnsupportedVersion: NativeErrorCode.UNKNOWN_OPERATION,
        errors.InvalidName: NativeErrorCode.INVALID_TOPIC_NAME,
        errors.TopicExists: NativeErrorCode.TOPIC_EXISTS,
        errors.UnknownLog: NativeErrorCode.UNKNOWN_TOPIC,
        errors.UnknownTopic: NativeErrorCode.UNKNOWN_TOPIC,
        errors.UnknownTopicId: NativeErrorCode.TOPIC_DELETED,
        errors.OffsetOutOfRange: NativeErrorCode.OUT_OF_RANGE,
        errors.DataLost: NativeErrorCode.OUT_OF_RANGE,
        errors.BatchTooLarge: NativeErrorCode.TOO_LARGE,
        errors.CapExceeded: NativeErrorCode.DENIED,
        # The caller is not known, or has no right to do this.
        errors.NotAuthenticated: NativeErrorCode.LOGIN_NEEDED,
        errors.AccessDenied: NativeErrorCode.DENIED,
        # The client may try again.
        errors.Unavailable: NativeErrorCode.CLUSTER_NOT_READY,
        errors.WouldBlock: NativeErrorCode.BACKPRESSURE,
        errors.DeadlineExceeded: NativeErrorCode.BACKPRESSURE,
        errors.QuotaExceeded: NativeErrorCode.RATE_LIMITED,
        errors.NotLeader: NativeErrorCode.NOT_LEADER,
        errors.LeaderNotAvailable: NativeErrorCode.LEADER_UNKNOWN,
        errors.NotEnoughReplicas: NativeErrorCode.NO_QUORUM,
        errors.NotCoordinator: NativeErrorCode.NOT_LEADER,
        errors.OutcomeUnknown: NativeErrorCode.TIMEOUT,
        # The log does not take the records, or an operator has to act.
        errors.LogFull: NativeErrorCode.STORAGE,
        errors.DiskFull: NativeErrorCode.STORAGE,
        errors.LogOffline: NativeErrorCode.STORAGE,
        errors.LogClosed: NativeErrorCode.CLUSTER_NOT_READY,
        errors.StorageFailed: NativeErrorCode.STORAGE,
        errors.CorruptData: NativeErrorCode.STORAGE,
        errors.RecordsInRepair: NativeErrorCode.CLUSTER_NOT_READY,
    }
)

RETRIABLE_WORD = "FORWARD_FAILED"
"""Published clients try again after an error whose text contains this word, and after no other."""


def code_of(error: errors.MillstreamError) -> NativeErrorCode:
    """Return the code of the error's nearest listed ancestor."""
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)


def error_body(error: errors.MillstreamError) -> bytes:
    """Return the body of the frame that reports an error."""
    code = code_of(error)
    details = _details_of(error)
    if code in RETRIABLE:
        details["retry"] = RETRIABLE_WORD
    return msgspec.json.encode(ErrorBody(code=code, message=str(error), details=details))


def _details_of(error: errors.MillstreamError) -> dict[str, Any]:
    """Return what programs may need of an error, beside its code."""
    details: dict[str, Any] = {}
    match error:
        case errors.QuotaExceeded():
            details = {"retry_after_ms": error.throttle_ms, "quota": error.quota}
        case errors.OffsetOutOfRange():
            details = {"offset": error.offset, "start": error.start, "end": error.end}
        case errors.DamagedRecords():
            details = {"from": error.from_offset, "to": error.to_offset}
        case errors.NotLeader() if error.leader >= 0:
            details = {"leader": error.leader}
        case errors.NotCoordinator() if error.coordinator >= 0:
            details = {"coordinator": error.coordinator}
        case errors.LogFull() | errors.DiskFull():
            details = {"kind": error.kind}
    return details
