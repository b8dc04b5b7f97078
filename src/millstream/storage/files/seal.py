r"""Seal of a segment: what is known about its `.log` without reading it.

     0      4         6   8             16            24         32        40
    +------+---------+---+-------------+-------------+----------+---------+--------- - -
    | MSSL | version | 0 | base offset | next offset | log size | batches | records
    +------+---------+---+-------------+-------------+----------+---------+--------- - -
           48              56              64           72          80          96
      - - +---------------+---------------+------------+-----------+-----------+-----
          | min timestamp | max timestamp | created ms | sealed ms | digest    | - -
      - - +---------------+---------------+------------+-----------+-----------+-----
           96             100      104
      - - +--------------+--------+
          | leader epoch | crc32c |
      - - +--------------+--------+

Little-endian. The checksum covers everything before it. `digest` chains the headers of all batches:
each has the checksum of its own records, so two `.log` files with one digest hold the same bytes.
The chain can be continued, so a segment that is reopened is not read again.

The seal of a rewritten segment is the commit point of the rewrite (`generations.py`).

A segment has a seal exactly while it is not being written. Sealing the last segment makes a
shutdown clean; removing its seal, durably, must happen before it is written again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crc32c import crc32c
from xxhash import xxh3_128_digest

from millstream.errors import CorruptFile, UnknownFormat
from millstream.records.batch import NO_TIMESTAMP, BatchHeader, Bytes
from millstream.storage.files.index import NO_TIME

_SEAL = struct.Struct("<4sHHqqqqqqqqq16si")
_CRC = struct.Struct("<I")
_MAGIC = b"MSSL"
_VERSION = 1
SEAL_SIZE = _SEAL.size + _CRC.size

EMPTY_DIGEST = bytes(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Facts about a segment that is not written any more."""

    base_offset: int
    next_offset: int
    size: int
    batch_count: int
    record_count: int
    timestamp_min: int
    """Smallest base timestamp of a batch with records.

    A record may be older: its delta may be negative.
    """
    timestamp_max: int
    created_ms: int
    sealed_ms: int
    digest: bytes
    leader_epoch: int


class SegmentStats:
    """The future content of the seal of a segment that is growing or being scanned."""

    __slots__ = (
        "base_offset",
        "batch_count",
        "created_ms",
        "digest",
        "leader_epoch",
        "next_offset",
        "record_count",
        "size",
        "timestamp_max",
        "timestamp_min",
    )

    def __init__(self, base_offset: int, *, leader_epoch: int, created_ms: int) -> None:
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.batch_count = 0
        self.record_count = 0
        self.timestamp_min = NO_TIMESTAMP
        self.timestamp_max = NO_TIME
        self.created_ms = created_ms
        self.digest = EMPTY_DIGEST
        self.leader_epoch = leader_epoch

    def add(self, header: BatchHeader, size: int, header_bytes: Bytes) -> None:
        """Count the next batch; `header_bytes` are those in the `.log`.

        Only fields of `header` that are not stamped are used. A batch without records, as a rewrite
        leaves them, has no timestamp. This runs for every batch, on every path, so it does no more
        than it must.
        """
        self.next_offset += header.last_offset_delta + 1
        self.size += size
        if header.record_count:
            if header.base_timestamp < self.timestamp_min or self.record_count == 0:
                self.timestamp_min = header.base_timestamp
            self.timestamp_max = max(self.timestamp_max, header.max_timestamp)
            self.record_count += header.record_count
        self.batch_count += 1
        self.digest = xxh3_128_digest(self.digest + header_bytes)

    def seal(self, sealed_ms: int) -> Seal:
        """Return the seal of the segment as it is now."""
        return Seal(
            base_offset=self.base_offset,
            next_offset=self.next_offset,
            size=self.size,
            batch_count=self.batch_count,
            record_count=self.record_count,
            timestamp_min=self.timestamp_min,
            timestamp_max=self.timestamp_max,
            created_ms=self.created_ms,
            sealed_ms=sealed_ms,
            digest=self.digest,
            leader_epoch=self.leader_epoch,
        )


def stats_from_seal(seal: Seal) -> SegmentStats:
    """Return statistics that continue from `seal`."""
    stats = SegmentStats(
        seal.base_offset, leader_epoch=seal.leader_epoch, created_ms=seal.created_ms
    )
    stats.next_offset = seal.next_offset
    stats.size = seal.size
    stats.batch_count = seal.batch_count
    stats.record_count = seal.record_count
    stats.timestamp_min = seal.timestamp_min
    stats.timestamp_max = seal.timestamp_max
    stats.digest = seal.digest
    return stats


def encode_seal(seal: Seal) -> bytes:
    data = _SEAL.pack(
        _MAGIC,
        _VERSION,
        0,
        seal.base_offset,
        seal.next_offset,
        seal.size,
        seal.batch_count,
        seal.record_count,
        seal.timestamp_min,
        seal.timestamp_max,
        seal.created_ms,
        seal.sealed_ms,
        seal.digest,
        seal.leader_epoch,
    )
    return data + _CRC.pack(crc32c(data))


def decode_seal(data: bytes) -> Seal:
    """Decode and check a seal file."""
    if len(data) != SEAL_SIZE:
        raise CorruptFile(f"seal must have {SEAL_SIZE} bytes, got {len(data)}")
    crc = _CRC.unpack_from(data, _SEAL.size)[0]
    if (checksum := crc32c(data[: _SEAL.size])) != crc:
        raise CorruptFile(f"seal has checksum {checksum:08x}, its last bytes say {crc:08x}")
    magic, version, pad, base, following, size, batches, records, *rest = _SEAL.unpack_from(data)
    if magic != _MAGIC or pad != 0:
        raise CorruptFile(f"seal starts with {magic!r}, expected {_MAGIC!r}")
    if version != _VERSION:
        raise UnknownFormat(f"seal has version {version}, expected {_VERSION}")
    timestamp_min, timestamp_max, created_ms, sealed_ms, digest, leader_epoch = rest
    return Seal(
        base_offset=base,
        next_offset=following,
        size=size,
        batch_count=batches,
        record_count=records,
        timestamp_min=timestamp_min,
        timestamp_max=timestamp_max,
        created_ms=created_ms,
        sealed_ms=sealed_ms,
        digest=digest,
        leader_epoch=leader_epoch,
    )
