"""AppendBatch: a batch for a partition that another node leads.

It is answered when the batch is committed, or with the error. `error_name` is the code of the error
over HTTP, so that the client of the sender gets the same error from every node.
"""

from __future__ import annotations

import uuid

from millstream.protocols.kafka.codec.message import Versions, message, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    FLOAT64,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID,
    Records,
)

APPEND_BATCH = Versions(first=0, last=0, flexible=0)


@message(APPEND_BATCH)
class AppendBatchRequest:
    """A batch that the sender built of single records; its producer is in the batch."""

    topic_id: uuid.UUID = wire(UUID)
    index: int = wire(INT32)
    leader_epoch: int = wire(INT32, default=-1)
    """The epoch of the leader that the sender knows; -1 if it knows none."""
    expected_offset: int = wire(INT64, default=-1)
    """The offset that the batch has to get; otherwise it is refused. -1 if any will do."""
    principal: str = wire(STRING, default="", since=0, tag=0)
    """Who sent the records, as the node has found out that has the client: `User:alice`. Empty for
    what nodes append themselves, such as dead letters."""
    token_id: str = wire(STRING, default="", since=0, tag=1)
    """The token by which the client has logged in; empty if there is none."""
    client_address: str = wire(STRING, default="", since=0, tag=2)
    batch: Records | None = wire(RECORDS)


@message(APPEND_BATCH)
class AppendBatchResponse:
    """Where the batch was stored, or why it was not."""

    error_code: int = wire(INT16, default=0)
    """The code between peers: it says whether something may have been done."""
    error_name: str = wire(STRING, default="")
    error_message: str = wire(STRING, default="")
    error_kind: str = wire(STRING, default="")
    """For what the append would have to wait, if it was refused for that."""
    leader: int = wire(INT32, default=-1)
    """The node that leads, if this one does not; -1 if it does not know."""
    leader_epoch: int = wire(INT32, default=-1)
    invalid_records: tuple[int, ...] = wire(ARRAY(INT32), default=())
    """The records that the topic does not accept."""
    base_offset: int = wire(INT64, default=-1)
    last_offset: int = wire(INT64, default=-1)
    append_time_ms: int = wire(INT64, default=-1)
    """The timestamp that the leader gave the records; -1 if they keep theirs."""
    high_watermark: int = wire(INT64, default=-1)
    commit_ms: float = wire(FLOAT64, default=0.0)
    fsync_ms: float = wire(FLOAT64, default=0.0)
    throttle_ms: float = wire(FLOAT64, default=0.0)
