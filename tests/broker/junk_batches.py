"""Batches whose checksum is correct and whose records cannot be decoded."""

from __future__ import annotations

from collections.abc import Callable

from millstream.records.batch import HEADER_SIZE, decode_header, seal
from millstream.records.build import build_batch
from millstream.records.compression import Codec, compress
from millstream.records.record import Record
from tests.broker.partitions import NOW_MS

RECORDS = 3
"""Records that the header of each batch promises."""


def _compressed_junk(codec: Codec) -> bytes:
    batch = build_batch([Record(b"value")] * RECORDS, now_ms=NOW_MS, codec=codec)
    # The end is the size that gzip declares: a larger one would be refused for that.
    return seal(decode_header(batch), b"\xff" * 36 + b"\1\0\0\0")


def _malformed_record(codec: Codec) -> bytes:
    """The first record is sound, and the second promises more bytes than there are."""
    plain = build_batch([Record(b"value")] * RECORDS, now_ms=NOW_MS)
    body = bytearray(plain[HEADER_SIZE:])
    body[1 + body[0] // 2] = 0x7E
    batch = build_batch([Record(b"value")] * RECORDS, now_ms=NOW_MS, codec=codec)
    return seal(decode_header(batch), compress(codec, bytes(body)))


def _wrong_count(count: int) -> bytes:
    """Another number of records than the header promises."""
    batch = build_batch([Record(b"value")] * count, now_ms=NOW_MS, codec=Codec.LZ4)
    header = decode_header(batch)._replace(record_count=RECORDS, last_offset_delta=RECORDS - 1)
    return seal(header, batch[HEADER_SIZE:])


JUNK: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: _compressed_junk(Codec.GZIP),
    "snappy": lambda: _compressed_junk(Codec.SNAPPY),
    "lz4": lambda: _compressed_junk(Codec.LZ4),
    "zstd": lambda: _compressed_junk(Codec.ZSTD),
    "uncompressed": lambda: _compressed_junk(Codec.NONE),
    "malformed record": lambda: _malformed_record(Codec.NONE),
    "malformed record in gzip": lambda: _malformed_record(Codec.GZIP),
    "fewer records": lambda: _wrong_count(RECORDS - 1),
    "more records": lambda: _wrong_count(RECORDS + 1),
}
