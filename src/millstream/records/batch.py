r"""The record batch: the unit that Millstream stores, replicates and serves.

A batch keeps Kafka's v2 layout from the producer's socket to the consumer's. The log stamps the
base offset and the leader epoch and nothing else; the checksum starts after both, so no hop has to
decompress the records or compute the checksum again.

     0        8        12       16  17       21           23         27          35
    +--------+--------+--------+---+--------+------------+----------+-----------+---- - -
    | base   | length | leader | 2 | crc32c | attributes | last off-| base time-| max time-
    | offset |        | epoch  |   |        |            | set delta| stamp     | stamp
    +--------+--------+--------+---+--------+------------+----------+-----------+---- - -
     \______/          \______/              \__________ covered by crc32c __________ - -
      stamped           stamped
               43          51         53         57        61
      - - ----+-----------+----------+----------+---------+----- - -
              | producer  | producer | base     | record  | records
              | id        | epoch    | sequence | count   |
      - - ----+-----------+----------+----------+---------+----- - -

`length` counts the bytes that follow it. Attributes, from the lowest bit: three for the codec, one
for log-append time, one for "part of a transaction", one for "control batch", one for "horizon":
the base timestamp is then the time from which tombstones of the batch may be removed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from millstream.errors import CorruptBatch

Bytes: TypeAlias = bytes | bytearray | memoryview

_HEADER = struct.Struct(">qiibIhiqqqhii")
_HEADER_HEAD = struct.Struct(">qiibI")  # Up to the checksum, which does not cover these fields.
_HEADER_TAIL = struct.Struct(">hiqqqhii")  # From the attributes on: covered by the checksum.
_PREFIX = struct.Struct(">qii")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")
CRC_START = 17
LENGTH_END = 12
CRC_END = 21
MAX_TIMESTAMP_START = 35
MAGIC = 2

unpack_header = _HEADER.unpack_from
"""Return the fields of `BatchHeader` as a plain tuple, unchecked: for loops that check in place."""

HEADER_SIZE = _HEADER.size
PREFIX_SIZE = _PREFIX.size
"""Size of base offset, length and leader epoch: the bytes before the magic byte."""

BATCH_SIZE_MAX = 64 * 1024 * 1024
"""Far above any sane `max.message.bytes`; keeps a corrupt length from becoming an allocation."""

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
HORIZON_BIT = 0x40

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
NO_TIMESTAMP = -1


class BatchHeader(NamedTuple):
    """The fixed part of a batch, in the order of its bytes."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Size of the batch in bytes, header included."""
        return self.length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """Number of the compression codec; 0 means none."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether `max_timestamp` is the timestamp of every record, regardless of their deltas."""
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the records are transaction markers, which applications must not see."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_horizon(self) -> bool:
        """Whether `base_timestamp` is the time from which tombstones may be removed.

        Only compaction sets this.
        """
        return bool(self.attributes & HORIZON_BIT)


def decode_header(data: Bytes, position: int = 0) -> BatchHeader:
    """Decode and check the header at `position` in `data`."""
    if len(data) - position < HEADER_SIZE:
        raise CorruptBatch(
            f"batch header must have {HEADER_SIZE} bytes, got {len(data) - position}"
        )
    header = BatchHeader._make(_HEADER.unpack_from(data, position))
    if header.magic != MAGIC:
        raise CorruptBatch(f"batch magic must be {MAGIC}, got {header.magic}")
    size = header.length + LENGTH_END
    if not HEADER_SIZE <= size <= BATCH_SIZE_MAX:
        raise CorruptBatch(
            f"batch size must be between {HEADER_SIZE} and {BATCH_SIZE_MAX} bytes, got {size}"
        )
    if header.last_offset_delta < 0:
        raise CorruptBatch(f"last offset delta must be 0 or more, got {header.last_offset_delta}")
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise CorruptBatch(
            f"record count must be between 0 and {header.last_offset_delta + 1}, the number of"
            f" offsets of the batch, got {header.record_count}"
        )
    return header


def check_batch(header: BatchHeader, batch: Bytes) -> None:
    """Raise `CorruptBatch` unless `batch` is complete and its checksum matches its header."""
    if len(batch) != header.size:
        raise CorruptBatch(
            f"batch must have {header.size} bytes, as its header says, got {len(batch)}"
        )
    if (computed := crc32c(memoryview(batch)[CRC_END:])) != header.crc:
        raise CorruptBatch(f"batch checksum is {computed:08x}, its header says {header.crc:08x}")


def seal(header: BatchHeader, body: Bytes) -> bytes:
    """Return the batch of this header and body, with length and checksum computed."""
    base_offset, _, leader_epoch, magic, _, *fields = header
    tail = _HEADER_TAIL.pack(*fields)
    length = HEADER_SIZE - LENGTH_END + len(body)
    crc = crc32c(body, crc32c(tail))
    return b"".join((_HEADER_HEAD.pack(base_offset, length, leader_epoch, magic, crc), tail, body))


def seal_in_place(header: BatchHeader, batch: bytearray | memoryview) -> None:
    """Write the header of `batch` in front of the body that it holds already.

    Does what `seal` does, without a copy of the body.
    """
    base_offset, _, leader_epoch, magic, _, *fields = header
    _HEADER_TAIL.pack_into(batch, CRC_END, *fields)
    crc = crc32c(memoryview(batch)[CRC_END:])
    _HEADER_HEAD.pack_into(batch, 0, base_offset, len(batch) - LENGTH_END, leader_epoch, magic, crc)


def stamped_prefix(header: BatchHeader, *, base_offset: int, leader_epoch: int) -> bytes:
    """Return the first sixteen bytes of the batch as the log stamps them.

    Writing these and then the other bytes of the batch stamps it without a copy, and without a
    change to the caller's buffer.
    """
    return _PREFIX.pack(base_offset, header.length, leader_epoch)


def stamp(batch: Bytes, *, base_offset: int, leader_epoch: int) -> bytes:
    """Return `batch` with base offset and leader epoch filled in."""
    prefix = stamped_prefix(
        decode_header(batch), base_offset=base_offset, leader_epoch=leader_epoch
    )
    return prefix + bytes(memoryview(batch)[PREFIX_SIZE:])


def with_append_time(batch: Bytes, now_ms: int) -> bytes:
    """Return `batch` with timestamp `now_ms` for all its records, and a new checksum.

    This is what Kafka calls LogAppendTime: the records keep their deltas, and the header overrides
    them.
    """
    header = decode_header(batch)
    dated = bytearray(batch)
    _ATTRIBUTES.pack_into(dated, CRC_END, header.attributes | TIMESTAMP_TYPE_BIT)
    _TIMESTAMP.pack_into(dated, MAX_TIMESTAMP_START, now_ms)
    _CRC.pack_into(dated, CRC_START, crc32c(memoryview(dated)[CRC_END:]))
    return bytes(dated)


def split(data: Bytes) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Split `data` into its batches, without a check of their checksums."""
    view = memoryview(data)
    position = 0
    while position < len(view):
        header = decode_header(view, position)
        end = position + header.size
        if end > len(view):
            raise CorruptBatch(
                f"batch is truncated: it ends at byte {end}, the data at {len(view)}"
            )
        yield header, view[position:end]
        position = end
