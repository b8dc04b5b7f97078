"""Errors of forwarded appends, as they travel between nodes."""

from __future__ import annotations

from millstream.broker.partition.batch_validator import InvalidBatchRecord, InvalidBatchValues
from millstream.broker.partition.value_check import ValueFault
from millstream.errors import (
    BACKPRESSURE_KINDS,
    BadRecord,
    DeadlineExceeded,
    MillstreamError,
    NotLeader,
    OutcomeUnknown,
    WouldBlock,
)
from millstream.protocols.http.errors import KINDS, code_of
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.errors import peer_code_of
from millstream.protocols.peer.messages.append_batch import AppendBatchResponse

MESSAGE_LENGTH_MAX = 1_000
"""Characters of the text of an error that are sent."""


def append_error_response(error: MillstreamError) -> AppendBatchResponse:
    """Return the response to a batch that was not appended, or of which nobody knows."""
    not_leader = error if isinstance(error, NotLeader) else None
    invalid = error.record_indexes if isinstance(error, InvalidBatchRecord) else ()
    code = PeerErrorCode.NOT_LEADER_OR_FOLLOWER if not_leader is not None else peer_code_of(error)
    return AppendBatchResponse(
        error_code=code,
        error_name=code_of(type(error)),
        error_message=str(error)[:MESSAGE_LENGTH_MAX],
        error_kind=getattr(error, "kind", None) or "",
        leader=-1 if not_leader is None else not_leader.leader,
        leader_epoch=-1 if not_leader is None else not_leader.leader_epoch,
        invalid_records=tuple(invalid),
    )


def append_error_of(response: AppendBatchResponse, place: str) -> MillstreamError:
    """Return the error in a response. One that this release does not know is an unknown outcome."""
    if response.invalid_records:
        return _invalid_records(response)
    kind = KINDS.get(response.error_name)
    message = response.error_message
    if kind is None:
        return OutcomeUnknown(f"{place}: {response.error_name} ({response.error_code}): {message}")
    if issubclass(kind, NotLeader):
        return kind(message, leader=response.leader, leader_epoch=response.leader_epoch)
    reason = next((word for word in BACKPRESSURE_KINDS if word == response.error_kind), None)
    if issubclass(kind, DeadlineExceeded | WouldBlock):
        return DeadlineExceeded(message, reason)
    try:
        return kind(message)
    except TypeError:  # It has more than a message, and no append raises it.
        return OutcomeUnknown(f"{place}: {response.error_name}: {message}")


def _invalid_records(response: AppendBatchResponse) -> MillstreamError:
    """Return the error for records without a key, or whose values do not fit the schema.

    Only the first of these reasons is sent, in the message.
    """
    if response.error_name != code_of(BadRecord):
        return InvalidBatchRecord(response.invalid_records)
    first, *others = response.invalid_records
    reason = response.error_message.partition(": ")[2].partition("; nor do records ")[0]
    faults = [ValueFault(first, reason)]
    faults += [ValueFault(index, f"as record {first}, or for another reason") for index in others]
    return InvalidBatchValues(faults)
