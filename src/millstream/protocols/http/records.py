"""Records over HTTP: appending some, and the difference from a cursor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from millstream.errors import MalformedRequest
from millstream.protocols.http.values import Text, text_bytes, text_json, value_bytes, value_json
from millstream.records.record import Gap, Header, Record, StoredRecord

NODE_HEADER = "millstream-node"
"""The header that says which node a record comes from: other doors show it like any other."""

RECORDS_MAX = 10_000
"""Records in one request, and in one answer."""

OFFSET_MAX = 2**63 - 1
TIMESTAMP_MAX = 2**53
WAIT_MS_MAX = 60_000
READ_BYTES_MAX = 16 * 1024 * 1024

Offset: TypeAlias = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
PartitionIndex: TypeAlias = Annotated[
    int, Meta(ge=0, le=2**31 - 1, description="Which partition of the topic, from 0.")
]
NodeName: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=255,
        description="Who writes. A reader that says `exclude_node` is spared what it wrote itself.",
    ),
]
HeaderValues: TypeAlias = Annotated[list[Text | None], Meta(min_length=1)]
HeaderValue: TypeAlias = Text | HeaderValues | None


class AppendRecord(Struct, kw_only=True, forbid_unknown_fields=True):
    """One record that is to be appended."""

    value: Annotated[
        Raw,
        Meta(
            description='Any JSON. `{"base64": "..."}` stands for those bytes, null for no value.',
        ),
    ] = msgspec.field(default_factory=lambda: Raw(b"null"))
    key: Text | None = None
    headers: dict[str, HeaderValue] = {}
    """A list where a header is there several times."""
    partition: PartitionIndex | None = None
    """Where it goes; without one, to where its key belongs, or wherever."""
    timestamp: Annotated[int, Meta(ge=0, le=TIMESTAMP_MAX)] | None = None
    """Milliseconds since 1970; the present, where there is none."""
    node: NodeName | None = None


class AppendProducer(Struct, kw_only=True, forbid_unknown_fields=True):
    """Who appends, and where this request stands in the row of its requests.

    A request that comes twice is appended once, and is answered the same.
    """

    id: Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
    epoch: Annotated[int, Meta(ge=0, le=2**15 - 1)]
    sequence: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    """How many records this producer appended to the partition before these."""


class AppendBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Records that are to be appended."""

    records: Annotated[list[AppendRecord], Meta(min_length=1, max_length=RECORDS_MAX)]
    partition: PartitionIndex | None = None
    """Where those records go that do not say it themselves."""
    node: NodeName | None = None
    producer: AppendProducer | None = None
    """All records have to go to one partition then, which has to be named."""


class RequestCost(Struct, kw_only=True):
    """What a request cost, in milliseconds."""

    commit_ms: float = 0
    """From when the records had their offsets to when they were safe, by their topic's class."""
    fsync_ms: float = 0
    """Of these, how long the disk took."""
    throttle_ms: float = 0
    """How long they waited for their offsets, because too much waited for the disk already."""


class AppendAnswer(Struct, kw_only=True):
    """Where the records went."""

    offsets: list[int]
    """One for each record, in the order of the request."""
    partition: int | None
    """Null where they went to several."""
    partitions: list[int] | UnsetType = UNSET
    """Where they went to several: the partition of each record."""
    head: int | None
    """The offset after the last record of the partition; null where they went to several."""
    cost: RequestCost


class RecordsQuery(Struct, kw_only=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Which records to read."""

    from_: Annotated[Offset, Meta(description="The cursor: the first offset that is new.")] = 0
    limit: Annotated[
        int, Meta(ge=1, le=RECORDS_MAX, description="Records in the answer, at the most.")
    ] = 1_000
    max_bytes: Annotated[
        int,
        Meta(
            ge=1,
            le=READ_BYTES_MAX,
            description="Bytes of keys and values in the answer, at the most; one record may be"
            " larger.",
        ),
    ] = 1024 * 1024
    wait_ms: Annotated[
        int,
        Meta(
            ge=0, le=WAIT_MS_MAX, description="How long to wait for a record where there is none."
        ),
    ] = 0
    exclude_node: NodeName | None = None
    partition: PartitionIndex | None = None


class GapShape(Struct, kw_only=True, rename={"from_": "from"}):
    """Offsets that a reader will never see."""

    from_: int
    to: int
    """The last that is gone."""
    reason: str


class RecordShape(Struct, kw_only=True):
    """One record, with its place in the log."""

    offset: int
    timestamp: int
    key: Text | None
    value: Raw
    headers: dict[str, HeaderValue]
    node: str | UnsetType = UNSET


class RecordsAnswer(Struct, kw_only=True):
    """What is new from a cursor on."""

    records: list[RecordShape]
    next: int
    """The cursor to go on with."""
    head: int
    """The offset after the last record there is."""
    gaps: list[GapShape]
    """What the cursor had not seen, and retention took."""


class DeletionBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which records go: those of a key, or whose key begins so, or all before an offset."""

    key: Text | None = None
    key_prefix: Text | None = None
    before: Offset | None = None
    """With a key: only records of this key before the offset."""
    partition: PartitionIndex | None = None
    """Null for all; an offset means something in one partition only."""


class DeletionAnswer(Struct, kw_only=True):
    """What went."""

    deleted: Annotated[int, Meta(ge=0)]


# From a message to records.


def record_of(sent: AppendRecord, node: str | None) -> Record:
    """Return the record that a log keeps; `node` is that of the request."""
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
            raise MalformedRequest(f"a record has the header {name!r}: needed is its field node")
        values = value if isinstance(value, list) else [value]
        headers += [(name, text_bytes(one)) for one in values]
    if origin is not None:
        headers.append((NODE_HEADER, origin.encode()))
    return tuple(headers)


# From records to JSON. These run for every record that is read, so they put bytes together.


def origin_of(record: StoredRecord) -> bytes | None:
    """Return which node a record comes from, where it says so."""
    for name, value in record.headers:
        if name == NODE_HEADER:
            return value
    return None


def record_json(record: StoredRecord) -> bytes:
    """Return a record as `RecordShape` has it."""
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
    """Return headers as JSON, and the field `node` where one of them says it.

    What is there several times becomes a list. Other doors can write anything into the header
    that says where a record comes from; what is no text is shown as the header that it is.
    """
    node = b""
    found: dict[str, list[bytes]] = {}
    for name, value in headers:
        text = text_json(value)
        if name == NODE_HEADER and not node and text.startswith(b'"'):
            node = b',"node":' + text
        else:
            found.setdefault(name, []).append(text)
    fields = [
        msgspec.json.encode(name)
        + b":"
        + (values[0] if len(values) == 1 else b"[" + b",".join(values) + b"]")
        for name, values in found.items()
    ]
    return b"{" + b",".join(fields) + b"}", node


def gap_json(gap: Gap) -> bytes:
    """Return a gap as `GapShape` has it."""
    shape = GapShape(from_=gap.from_offset, to=gap.to_offset, reason=gap.reason)
    return msgspec.json.encode(shape)


def records_json(
    records: Iterable[bytes], *, next_offset: int, head: int, gap: Gap | None
) -> bytes:
    """Return a `RecordsAnswer`, of records that are JSON already."""
    return b'{"records":[%s],"next":%d,"head":%d,"gaps":[%s]}' % (
        b",".join(records),
        next_offset,
        head,
        b"" if gap is None else gap_json(gap),
    )
