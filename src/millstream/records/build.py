"""Encoder from records to a batch, used by every server and client.

Layout of a record; all numbers are varints, the timestamp delta a varlong:

    +--------+------------+-----------+--------+--------+-----+-------+-------+---------+---- - -
    | length | attributes | timestamp | offset | key    | key | value | value | header  | headers
    |        | one byte, 0| delta     | delta  | length |     | length|       | count   |
    +--------+------------+-----------+--------+--------+-----+-------+-------+---------+---- - -

    each header:
    +------------+-----+--------------+-------+
    | key length | key | value length | value |      `length` counts the bytes that follow it.
    +------------+-----+--------------+-------+      A length of -1 means null, except for header
                                                     keys.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from millstream.errors import BatchTooLarge, InvalidBatch
from millstream.records.batch import (
    BATCH_SIZE_MAX,
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    seal,
)
from millstream.records.compression import BODY_SIZE_MAX, Codec, compress
from millstream.records.record import Header, Record
from millstream.records.varint import encode_varint, encode_varlong

_ZERO = b"\0"
_NULL = encode_varint(-1)


def build_batch(
    records: Sequence[Record],
    *,
    now_ms: int,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytes:
    """Return a batch of `records`, in order, from offset 0 on.

    Records without a timestamp get `now_ms`. The batch has no leader epoch yet; the log stamps it,
    and the base offset.
    """
    if not records:
        raise InvalidBatch("a batch must have at least 1 record, got 0")
    attributes = codec | (is_transactional * TRANSACTIONAL_BIT) | (is_control * CONTROL_BIT)
    try:
        stamps = [now_ms if (at := r.timestamp_ms) is None else at for r in records]
        body = _encode_body(records, stamps, codec)
        header = BatchHeader(
            base_offset=0,
            length=HEADER_SIZE - LENGTH_END + len(body),
            leader_epoch=NO_LEADER_EPOCH,
            magic=MAGIC,
            crc=0,
            attributes=attributes,
            last_offset_delta=len(records) - 1,
            base_timestamp=stamps[0],
            max_timestamp=max(stamps),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=len(records),
        )
        if header.size > BATCH_SIZE_MAX:
            raise BatchTooLarge(
                f"batch must have at most {BATCH_SIZE_MAX} bytes, got {header.size}"
            )
        return seal(header, body)
    except (struct.error, OverflowError, UnicodeEncodeError) as error:
        raise InvalidBatch(f"a field of a record cannot be encoded: {error}") from error


def _encode_body(records: Sequence[Record], stamps: list[int], codec: Codec) -> bytes:
    body = _encode_records(records, stamps)
    if len(body) > BODY_SIZE_MAX:
        raise BatchTooLarge(
            f"records of a batch must have at most {BODY_SIZE_MAX} bytes, got {len(body)}"
        )
    return body if codec == Codec.NONE else compress(codec, body)


def _encode_records(records: Sequence[Record], stamps: list[int]) -> bytes:
    base = stamps[0]
    pieces: list[bytes] = []
    for index, record in enumerate(records):
        key, value, headers = record.key, record.value, record.headers
        head = b"".join(
            (
                _ZERO,
                encode_varlong(stamps[index] - base),
                encode_varint(index),
                _NULL if key is None else encode_varint(len(key)) + key,
                _NULL if value is None else encode_varint(len(value)),
            )
        )
        value = value or b""
        tail = _encode_headers(headers) if headers else _ZERO
        pieces += (encode_varint(len(head) + len(value) + len(tail)), head, value, tail)
    return b"".join(pieces)


def _encode_headers(headers: Sequence[Header]) -> bytes:
    pieces = [encode_varint(len(headers))]
    for key, value in headers:
        encoded = key.encode()
        pieces += (encode_varint(len(encoded)), encoded)
        pieces += (_NULL,) if value is None else (encode_varint(len(value)), value)
    return b"".join(pieces)
