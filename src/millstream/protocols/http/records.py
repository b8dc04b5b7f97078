"""Messages about records: append, read from a cursor, delete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from millstream.errors import MalformedRequest
from millstream.protocols.http.values import Text, text_bytes, text_json, value_bytes, value_json
from millstream.records.cursor import CURSOR_PATTERN
from millstream.records.record import GAP_REASONS, Gap, Header, Record, StoredRecord

NODE_HEADER = "millstream-node"
"""The header with the node that a record comes from. Kafka clients see it as a normal header."""

RECORDS_MAX = 10_000
"""Records in one request, and in one response."""

OFFSET_MAX = 2**63 - 1
TIMESTAMP_MAX = 2**53
WAIT_MS_MAX = 60_000
READ_BYTES_MAX = 16 * 1024 * 1024

READ_CURSOR_LENGTH_MAX = 4096
"""Characters of a cursor in the query of a read. That of one partition has at most 303."""

Offset: TypeAlias = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
Cursor: TypeAlias = Annotated[
    str,
    Meta(
        max_length=READ_CURSOR_LENGTH_MAX,
        description="A position of a reader, which names its topic. Use it as it is.",
        # Only described: `decode_cursor` checks it, and its error says what is expected.
        extra_json_schema={"pattern": f"^{CURSOR_PATTERN}$"},
    ),
]
GapReason: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(GAP_REASONS)})]
"""Not checked when it is read: a client accepts the reasons of later releases."""
PartitionIndex: TypeAlias = Annotated[
    int, Meta(ge=0, le=2**31 - 1, description="Partition of the topic, from 0.")
]
NodeName: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=255,
        description="Name of the writer. A reader with `exclude_node` skips its own records.",
    ),
]
HeaderValues: TypeAlias = Annotated[list[Text | None], Meta(min_length=1)]
HeaderValue: TypeAlias = Text | HeaderValues | None


class AppendRecord(Struct, kw_only=True, forbid_unknown_fields=True):
    """A record to append."""

    value: Annotated[
        Raw,
        Meta(
            description='Any JSON. `{"base64": "..."}` is decoded to bytes, null is no value.',
        ),
    ] = msgspec.field(default_factory=lambda: Raw(b"null"))
    key: Text | None = None
    headers: dict[str, HeaderValue] = {}
    """The value is a list if a header has several values."""
    partition: PartitionIndex | None = None
    """Its partition; without one, that of its key, or any."""
    timestamp: Annotated[int, Meta(ge=0, le=TIMESTAMP_MAX)] | None = None
    """Milliseconds since 1970. Default: now."""
    node: NodeName | None = None


class AppendProducer(Struct, kw_only=True, forbid_unknown_fields=True):
    """The producer and the sequence number of a request.

    A request that is sent twice is appended once, and gets the same response.
    """

    id: Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
    epoch: Annotated[int, Meta(ge=0, le=2**15 - 1)]
    sequence: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    """Number of records that this producer appended to the partition before these."""


class AppendBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Records to append."""

    records: Annotated[list[AppendRecord], Meta(min_length=1, max_length=RECORDS_MAX)]
    partition: PartitionIndex | None = None
    """The partition of records that do not name one."""
    node: NodeName | None = None
    producer: AppendProducer | None = None
    """If given, all records have to name the same partition."""


class RequestCost(Struct, kw_only=True):
    """Times of a request in milliseconds."""

    commit_ms: float = 0
    """From assigning offsets until the durability class of the topic was met."""
    fsync_ms: float = 0
    """The part of it that the disk took."""
    throttle_ms: float = 0
    """Wait for offsets because too many records waited for the disk, or the time to wait before the
    next request because of a quota, whichever is longer.
    """


class AppendAnswer(Struct, kw_only=True):
    """The positions of the appended records."""

    offsets: list[int]
    """One for each record, in the order of the request."""
    partition: int | None
    """Null if there are several."""
    partitions: list[int] | UnsetType = UNSET
    """The partition of each record, if there are several."""
    head: int | None
    """The offset after the last record of the partition; null if there are several partitions."""
    cost: RequestCost


class RecordsQuery(Struct, kw_only=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """The records to read."""

    from_: Annotated[
        Offset | Cursor,
        Meta(
            description="Where to start: the `cursor` of an earlier response, or an offset of the"
            " present topic.",
        ),
    ] = 0
    limit: Annotated[int, Meta(ge=1, le=RECORDS_MAX, description="Maximum number of records.")] = (
        1_000
    )
    max_bytes: Annotated[
        int,
        Meta(
            ge=1,
            le=READ_BYTES_MAX,
            description="Maximum bytes of keys and values; a single record may be larger.",
        ),
    ] = 1024 * 1024
    wait_ms: Annotated[
        int,
        Meta(ge=0, le=WAIT_MS_MAX, description="How long to wait for a record if there is none."),
    ] = 0
    exclude_node: NodeName | None = None
    partition: PartitionIndex | None = None
    stale: Annotated[
        bool,
        Meta(
            description="Return what the replica of this node has, without asking the leader of the"
            " partition for records that were acknowledged a moment ago."
        ),
    ] = False


class GapShape(Struct, kw_only=True, rename={"from_": "from"}):
    """Offsets that were deleted before the reader got to them, or whose records are damaged.

    The reason is the retention policy that deleted them (`age`, `bytes`, `records`; `retention` if
    that was not recorded), or `recreated`: the cursor is one of a topic that was deleted. Then both
    offsets are those of the cursor, and reading starts over in the topic that now has the name.
    `damaged` records cannot be read. `source` is reserved for records that were missing in the
    source of a copy.
    """

    from_: int
    to: int
    """The last missing offset."""
    reason: GapReason


class RecordShape(Struct, kw_only=True):
    """A record and its position in the log."""

    offset: int
    timestamp: int
    key: Text | None
    value: Raw
    headers: dict[str, HeaderValue]
    node: str | UnsetType = UNSET


class RecordsAnswer(Struct, kw_only=True):
    """New records from a cursor."""

    records: list[RecordShape]
    next: int
    """The offset to continue with. It does not name its topic: `cursor` does."""
    cursor: Cursor
    """The position to continue with, as `from`. If the topic is deleted and created again, a reader
    that uses it gets a gap with the reason `recreated`, and the new records from the first.
    """
    head: int
    """The offset after the last record."""
    gaps: list[GapShape]
    """Offsets after the cursor that retention has deleted; or the cursor is of a deleted topic."""


class DeletionBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The records to delete: those of a key, of a key prefix, or all before an offset."""

    key: Text | None = None
    key_prefix: Text | None = None
    before: Offset | None = None
    """With a key: only records of this key before the offset."""
    partition: PartitionIndex | None = None
    """Null for all. An offset needs a partition."""


class DeletionAnswer(Struct, kw_only=True):
    """Number of deleted records."""

    deleted: Annotated[int, Meta(ge=0)]


# From a message to records.


def record_of(sent: AppendRecord, node: str | None) -> Record:
    """Return the record to append; `node` is that of the request."""
    key = sent.key
    headers = _headers_of(sent, sent.node or node) if sent.headers or sent.node or node else ()
    return Record(
        value_bytes(sent.value),
        key.encode() if isinstance(key, str) else text_bytes(key),
        headers,
        sent.timestamp,
    )


def _headers_of(sent: AppendRecord, origin: str | None) -> tuple[Header, ...]:
    headers: list[Header] = []
    for name, value in sent.headers.items():
        if name == NODE_HEADER:
            raise MalformedRequest(f"header {name!r} is reserved: use the field node")
        values = value if isinstance(value, list) else [value]
        headers += [(name, text_bytes(item)) for item in values]
    if origin is not None:
        headers.append((NODE_HEADER, origin.encode()))
    return tuple(headers)


# From records to JSON. These run for every record that is read, so they concatenate bytes.


def origin_of(record: StoredRecord) -> bytes | None:
    """Return the node that a record comes from, if its headers name one."""
    for name, value in record.headers:
        if name == NODE_HEADER:
            return value
    return None


def record_json(record: StoredRecord) -> bytes:
    """Return a record as the JSON of a `RecordShape`."""
    headers, node = _headers_json(record.headers) if record.headers else (b"{}", b"")
    return b'{"offset":%d,"timestamp":%d,"key":%s,"value":%s,"headers":%s%s}' % (
        record.offset,
        record.timestamp_ms,
        text_json(record.key),
        value_json(record.value),
        headers,
        node,
    )


def _headers_json(headers: Iterable[Header]) -> tuple[bytes, bytes]:
    """Return headers as JSON, and the field `node` if one of them names it.

    Several values of a header become a list. Kafka clients can write anything into the header that
    names the node; if it is not text, it is shown as a normal header.
    """
    node = b""
    values_by_name: dict[str, list[bytes]] = {}
    for name, value in headers:
        text = text_json(value)
        if name == NODE_HEADER and not node and text.startswith(b'"'):
            node = b',"node":' + text
        else:
            values_by_name.setdefault(name, []).append(text)
    fields = [
        msgspec.json.encode(name)
        + b":"
        + (values[0] if len(values) == 1 else b"[" + b",".join(values) + b"]")
        for name, values in values_by_name.items()
    ]
    return b"{" + b",".join(fields) + b"}", node


def gap_json(gap: Gap) -> bytes:
    """Return a gap as the JSON of a `GapShape`."""
    shape = GapShape(from_=gap.from_offset, to=gap.to_offset, reason=gap.reason)
    return msgspec.json.encode(shape)


def records_json(
    records: Iterable[bytes],
    *,
    next_offset: int,
    cursor_prefix: str,
    head: int,
    gaps: Iterable[Gap],
) -> bytes:
    """Return a `RecordsAnswer` of encoded records."""
    return b'{"records":[%s],"next":%d,"cursor":"%s%d","head":%d,"gaps":[%s]}' % (
        b",".join(records),
        next_offset,
        cursor_prefix.encode(),
        next_offset,
        head,
        b",".join(map(gap_json, gaps)),
    )
