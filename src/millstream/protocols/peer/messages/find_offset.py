"""FindOffset: a node asks the leader of a partition for the first record from a time on."""

from __future__ import annotations

import uuid

from millstream.protocols.kafka.codec.message import Versions, message, wire
from millstream.protocols.kafka.codec.primitives import INT32, INT64, UUID

FIND_OFFSET = Versions(first=0, last=0, flexible=0)


@message(FIND_OFFSET)
class FindOffsetRequest:
    """A time, in milliseconds since 1970."""

    topic_id: uuid.UUID = wire(UUID)
    index: int = wire(INT32)
    timestamp_ms: int = wire(INT64)


@message(FIND_OFFSET)
class FindOffsetResponse:
    """The first record, by offset, that is not older; -1 if there is none."""

    offset: int = wire(INT64, default=-1)
