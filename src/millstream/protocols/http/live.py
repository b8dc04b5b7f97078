"""Messages of live delivery, by SSE and by WebSocket.

With SSE the name of an event is separate from its data; with WebSocket both are in one message,
and the cursor replaces the id:

    event: records
    id: orders@x3Jd0QmnRkK8m2Yv1pTq5w:0:42
    data: {"topic":"orders","partition":0,"records":[...],"next":42,"head":42}

    {"type":"records","cursor":"orders@x3...:0:42","topic":"orders","partition":0,...}
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from millstream.protocols.http.queues import Receipts
from millstream.protocols.http.records import AppendBody, GapReason, NodeName, RecordShape
from millstream.records.cursor import CURSOR_LENGTH_MAX

TOPICS_MAX = 100
"""Topics of one connection: their names have to fit into the first line of a request."""

EARLIEST = "earliest"
LATEST = "latest"

TopicName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=249)]
TopicNames: TypeAlias = Annotated[list[TopicName], Meta(min_length=1, max_length=TOPICS_MAX)]
Start: TypeAlias = Annotated[
    str,
    Meta(
        max_length=CURSOR_LENGTH_MAX,
        description="Where to start: `latest`, `earliest`, or a cursor (the id of an event).",
    ),
]


class EventsQuery(Struct, kw_only=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """The topics to watch."""

    topic: Annotated[TopicNames, Meta(description="Topic to watch; may be repeated.")]
    from_: Start = LATEST
    exclude_node: NodeName | None = None


# Events.


class RecordsData(Struct, kw_only=True):
    """New records of a partition."""

    topic: str
    partition: int
    records: list[RecordShape]
    next: int
    head: int


class GapData(Struct, kw_only=True, rename={"from_": "from"}):
    """Offsets that were deleted before the watcher read them, or whose records are damaged.

    See `GapShape` for the reasons.
    """

    topic: str
    partition: int
    from_: int
    to: int
    """The last missing offset."""
    reason: GapReason


class LagData(Struct, kw_only=True, rename={"from_": "from"}):
    """Offsets that the watcher was too slow for. They follow, read from the log."""

    topic: str
    partition: int
    from_: int
    to: int


class EndData(Struct, kw_only=True):
    """The end of a topic: no more events follow for it."""

    topic: str
    reason: str
    """`deleted`, `stopping` (the node stops), `failed` (it cannot be read), or `limit`."""


# Messages of a WebSocket client.

MessageId: TypeAlias = Annotated[int, Meta(ge=0, le=2**53, description="Repeated in the response.")]


class SubscribeMessage(Struct, kw_only=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Watch topics, or restart watching them from another position."""

    op: Literal["subscribe"]
    id: MessageId
    topics: TopicNames
    from_: Start = LATEST
    exclude_node: NodeName | None = None


class UnsubscribeMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """Stop watching topics."""

    op: Literal["unsubscribe"]
    id: MessageId
    topics: TopicNames


class AppendMessage(AppendBody, kw_only=True, forbid_unknown_fields=True):
    """Append records, as `POST /v1/topics/{topic}/records` does."""

    op: Literal["append"]
    id: MessageId
    topic: TopicName


class AckMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """Acknowledge jobs, as `POST /v1/queues/{queue}/ack` does."""

    op: Literal["ack"]
    id: MessageId
    queue: TopicName
    receipts: Receipts


ClientMessage: TypeAlias = SubscribeMessage | UnsubscribeMessage | AppendMessage | AckMessage

OPS: dict[str, type[ClientMessage]] = {
    "subscribe": SubscribeMessage,
    "unsubscribe": UnsubscribeMessage,
    "append": AppendMessage,
    "ack": AckMessage,
}


class Envelope(Struct):
    """The fields of a message that are read before it is validated."""

    op: str | msgspec.UnsetType = msgspec.UNSET
    id: MessageId | msgspec.UnsetType = msgspec.UNSET


class SubscribeResult(Struct, kw_only=True):
    """The cursor of the connection, over all topics that it watches."""

    cursor: str


class UnsubscribeResult(Struct, kw_only=True):
    """Those of the given topics that were watched."""

    topics: list[str]
