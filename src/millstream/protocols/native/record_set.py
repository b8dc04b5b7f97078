"""Records in the payload of a frame.

    +------+--------+-------+------+--------+------- - -
    | type | length | value | type | length | value
    +------+--------+-------+------+--------+------- - -
      u8     u32                                          little-endian

    0x01 value                         0x10 key size u16, key, value
    0x02 value: JSON                   0x11 time u64, value
    0x03 value: MessagePack            0x12 time u64, key size u16, key, value
    0x04 value: Protobuf               0x80-0xFE value, of a type of the user
    0x05 value: Avro                   0xFF no value; key, if there is one

Times are in nanoseconds since 1970. Records are stored as all others are, so that they can be read
by every client; what their type says beyond key and value is kept in a header of the record. When
they are fetched by this protocol, their bytes are those that were sent.

Published clients send payloads of another form too: the values of some records one after the other,
with nothing between them. A payload that is not a sequence of records as above is stored as one
record, with the number of records that the frame named, and fetched as it was sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from millstream.errors import BatchTooLarge, MalformedRequest
from millstream.records.batch import Bytes
from millstream.records.record import Header, Record, StoredRecord

TYPE_HEADER: Final = "millstream.native"
"""Header of a record that is not only a key and a value: its type, and the time if it has one. The
type 0 is that of a payload that is kept as it was sent, followed by the number of its records."""

RAW, JSON, MESSAGE_PACK, PROTOBUF, AVRO = 0x01, 0x02, 0x03, 0x04, 0x05
KEYED, TIMED, TIMED_KEYED = 0x10, 0x11, 0x12
USER_FIRST, USER_LAST = 0x80, 0xFE
NULL = 0xFF

_WHOLE = 0x00
_VALUE_TYPES = frozenset({JSON, MESSAGE_PACK, PROTOBUF, AVRO, *range(USER_FIRST, USER_LAST + 1)})
"""Types of which only the number is kept."""

_HEAD = struct.Struct("<BI")
_KEY_SIZE = struct.Struct("<H")
_TIME = struct.Struct("<Q")
_TYPE_AND_COUNT = struct.Struct("<BI")
_TYPE_AND_TIME = struct.Struct("<BQ")
NS_PER_MS = 1_000_000
KEY_SIZE_MAX = 0xFFFF

_TYPE_HEADERS = {kind: ((TYPE_HEADER, bytes([kind])),) for kind in _VALUE_TYPES}


class _NoRecords(Exception):
    """A payload is not a sequence of records."""


def read_records(payload: Bytes, *, record_count: int, count_max: int) -> list[Record]:
    """Return the records of a payload; `record_count` is what its frame says.

    Raises `BatchTooLarge` if there are more than `count_max`.
    """
    try:
        return _split(payload, count_max)
    except _NoRecords:
        header = (TYPE_HEADER, _TYPE_AND_COUNT.pack(_WHOLE, max(record_count, 1)))
        return [Record(bytes(payload), headers=(header,))]


def _split(payload: Bytes, count_max: int) -> list[Record]:
    records: list[Record] = []
    data = bytes(payload)
    position, size = 0, len(data)
    if not size:
        raise _NoRecords
    unpack, head_size = _HEAD.unpack_from, _HEAD.size
    while position < size:
        start = position + head_size
        if start > size:
            raise _NoRecords
        kind, length = unpack(data, position)
        position = start + length
        if position > size:
            raise _NoRecords
        value = data[start:position]
        if kind == RAW:
            records.append(Record(value))
        elif (headers := _TYPE_HEADERS.get(kind)) is not None:
            records.append(Record(value, headers=headers))
        else:
            records.append(_read_other(kind, value))
        if len(records) > count_max:
            raise BatchTooLarge(f"a frame must have at most {count_max} records")
    return records


def _read_other(kind: int, value: bytes) -> Record:
    """Return a record with a key, a time, or without a value."""
    if kind == NULL:
        return Record(None, key=value or None)
    if kind not in (KEYED, TIMED, TIMED_KEYED):
        raise _NoRecords
    timestamp_ms: int | None = None
    headers: tuple[Header, ...] = ()
    if kind != KEYED:
        if len(value) < _TIME.size:
            raise _NoRecords
        (time_ns,) = _TIME.unpack_from(value)
        value = value[_TIME.size :]
        timestamp_ms = time_ns // NS_PER_MS
        headers = ((TYPE_HEADER, _TYPE_AND_TIME.pack(kind, time_ns)),)
        if kind == TIMED:
            return Record(value, headers=headers, timestamp_ms=timestamp_ms)
    if len(value) < _KEY_SIZE.size:
        raise _NoRecords
    end = _KEY_SIZE.size + _KEY_SIZE.unpack_from(value)[0]
    if end > len(value):
        raise _NoRecords
    return Record(
        value[end:],
        key=value[_KEY_SIZE.size : end],
        headers=headers,
        timestamp_ms=timestamp_ms,
    )


class EncodedRecords(NamedTuple):
    """The records of a fetch, as they are sent."""

    data: bytes
    record_count: int
    """As the clients that sent them count."""
    next_offset: int | None
    """The offset of the first record that did not fit; None if all did."""


def encode_records(
    records: Iterable[StoredRecord], *, size_max: int, frame_size_max: int
) -> EncodedRecords:
    """Encode records from the first on, up to `size_max` bytes.

    The first is always encoded; raises `BatchTooLarge` if it has more than `frame_size_max` bytes.
    """
    parts: list[bytes] = []
    size = count = 0
    for record in records:
        encoded, record_count = _encode(record)
        if parts and size + len(encoded) > size_max:
            return EncodedRecords(b"".join(parts), count, record.offset)
        if len(encoded) > frame_size_max:
            raise BatchTooLarge(
                f"the record at offset {record.offset} has {len(encoded)} bytes in this protocol,"
                f" limit is {frame_size_max}"
            )
        parts.append(encoded)
        size += len(encoded)
        count += record_count
    return EncodedRecords(b"".join(parts), count, None)


def _encode(record: StoredRecord) -> tuple[bytes, int]:
    """Return the bytes of a record, and for how many it counts."""
    for name, content in record.headers:
        if name == TYPE_HEADER and content:
            encoded = _encode_typed(record, content)
            if encoded is not None:
                return encoded
    if record.value is None:
        return _with_head(NULL, record.key or b""), 1
    if record.key is None:
        return _with_head(RAW, record.value), 1
    return _with_head(KEYED, _key_size(record, record.key), record.key, record.value), 1


def _encode_typed(record: StoredRecord, content: bytes) -> tuple[bytes, int] | None:
    """Encode a record by its header; return `None` if the two do not fit together."""
    kind, value, key = content[0], record.value, record.key
    if value is None:
        return None
    if kind == _WHOLE and len(content) == _TYPE_AND_COUNT.size:
        return value, _TYPE_AND_COUNT.unpack(content)[1]
    if kind in _VALUE_TYPES and key is None:
        return _with_head(kind, value), 1
    if kind in (TIMED, TIMED_KEYED) and len(content) == _TYPE_AND_TIME.size:
        time = content[1:]
        if kind == TIMED and key is None:
            return _with_head(kind, time, value), 1
        if kind == TIMED_KEYED and key is not None:
            return _with_head(kind, time, _key_size(record, key), key, value), 1
    return None


def _key_size(record: StoredRecord, key: bytes) -> bytes:
    if len(key) > KEY_SIZE_MAX:
        raise BatchTooLarge(
            f"the key of the record at offset {record.offset} has {len(key)} bytes; this protocol"
            f" allows {KEY_SIZE_MAX}"
        )
    return _KEY_SIZE.pack(len(key))


def _with_head(kind: int, *parts: bytes) -> bytes:
    return b"".join((_HEAD.pack(kind, sum(map(len, parts))), *parts))


def typed_record(kind: int, value: bytes = b"", *, key: bytes = b"", time_ns: int = 0) -> bytes:
    """Encode one record, for clients: the arguments that its type has."""
    parts: list[bytes] = []
    if kind in (TIMED, TIMED_KEYED):
        parts.append(_TIME.pack(time_ns))
    if kind in (KEYED, TIMED_KEYED):
        if len(key) > KEY_SIZE_MAX:
            raise MalformedRequest(f"a key must have at most {KEY_SIZE_MAX} bytes, got {len(key)}")
        parts += (_KEY_SIZE.pack(len(key)), key)
    return _with_head(kind, *parts, key if kind == NULL else value)
