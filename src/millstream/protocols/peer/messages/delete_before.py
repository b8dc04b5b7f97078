"""DeleteBefore: a node lets the leader of a partition delete the records before an offset."""

from __future__ import annotations

import uuid

from millstream.protocols.kafka.codec.message import Versions, message, wire
from millstream.protocols.kafka.codec.primitives import INT32, INT64, UUID

DELETE_BEFORE = Versions(first=0, last=0, flexible=0)


@message(DELETE_BEFORE)
class DeleteBeforeRequest:
    """The first offset to keep; it may be repeated."""

    topic_id: uuid.UUID = wire(UUID)
    index: int = wire(INT32)
    offset: int = wire(INT64)


@message(DELETE_BEFORE)
class DeleteBeforeResponse:
    """The first offset that is left."""

    log_start: int = wire(INT64, default=-1)
