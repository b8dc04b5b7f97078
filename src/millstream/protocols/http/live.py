"""Live delivery: what a watcher asks for, and what it is told, by SSE and by WebSocket.

By SSE the name of an event stands beside its data; by WebSocket both are in one message, with the
cursor where SSE has its id:

    event: records
    id: orders:0:42
    data: {"topic":"orders","partition":0,"records":[...],"next":42,"head":42}

    {"type":"records","cursor":"orders:0:42","topic":"orders","partition":0,"records":[...],...}
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from millstream.protocols.http.cursors import CURSOR_LENGTH_MAX
from millstream.protocols.http.queues import Receipts
from millstream.protocols.http.records import AppendBody, NodeName, RecordShape

TOPICS_MAX = 100
"""Topics of one connection: their names alone have to fit into the first line of a request."""

EARLIEST = "earliest"
LATEST = "latest"

TopicName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=249)]
TopicNames: TypeAlias = Annotated[list[TopicName], Meta(min_length=1, max_length=TOPICS_MAX)]
Start: TypeAlias = Annotated[
    str,
    Meta(
        max_length=CURSOR_LENGTH_MAX,
        description="Where to begin: `latest`, `earliest`, or a cursor, which is the id of an"
        " event.",
    ),
]


class EventsQuery(Struct, kw_only=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """What to watch."""

    topic: Annotated[TopicNames, Meta(description="What to watch; may be there several times.")]
    from_: Start = LATEST
    exclude_node: NodeName | None = None


# What a watcher is told.


class RecordsData(Struct, kw_only=True):
    """What is new in a partition."""

    topic: str
    partition: int
    records: list[RecordShape]
    next: int
    head: int


class GapData(Struct, kw_only=True, rename={"from_": "from"}):
    """Offsets that the watcher will never see."""

    topic: str
    partition: int
    from_: int
    to: int
    """The last that is gone."""
    reason: str


class LagData(Struct, kw_only=True, rename={"from_": "from"}):
    """Offsets that the watcher was too slow for. They come next, read from the log."""

    topic: str
    partition: int
    from_: int
    to: int


class EndData(Struct, kw_only=True):
    """Nothing more comes of a topic."""

    topic: str
    reason: str
    """`deleted`, `stopping` (the node), `failed` (it cannot be read), or `limit`."""


# What a WebSocket client asks for.

MessageId: TypeAlias = Annotated[
    int, Meta(ge=0, le=2**53, description="Comes back with the answer.")
]


class SubscribeMessage(Struct, kw_only=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Watch topics, or watch them anew from somewhere else."""

    op: Literal["subscribe"]
    id: MessageId
    topics: TopicNames
    from_: Start = LATEST
    exclude_node: NodeName | None = None


class UnsubscribeMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """Watch topics no more."""

    op: Literal["unsubscribe"]
    id: MessageId
    topics: TopicNames


class AppendMessage(AppendBody, kw_only=True, forbid_unknown_fields=True):
    """Append records, as `POST /v1/topics/{topic}/records` does."""

    op: Literal["append"]
    id: MessageId
    topic: TopicName


class AckMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """Say that jobs are done, as `POST /v1/queues/{queue}/ack` does."""

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
    """What can be read of a message before it is known to be sound."""

    op: str | msgspec.UnsetType = msgspec.UNSET
    id: MessageId | msgspec.UnsetType = msgspec.UNSET


class SubscribeResult(Struct, kw_only=True):
    """Where the connection stands now, over all that it watches."""

    cursor: str


class UnsubscribeResult(Struct, kw_only=True):
    """The topics that were watched, of those that were named."""

    topics: list[str]
