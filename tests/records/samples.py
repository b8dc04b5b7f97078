"""Batches and records that several tests need."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c
from hypothesis import strategies as st

from millstream.records.batch import BatchHeader, decode_header
from millstream.records.record import Record, StoredRecord

NOW = 1_700_000_000_000

# Written by hand from the protocol guide. The first record: key "k", value "hello", header "h"
# with value "v". The second: no key, no value, ten milliseconds earlier.
GOLDEN_BODY = bytes.fromhex("20 000000 026b 0a68656c6c6f 02 0268 0276  0c 00 13 02 01 01 00")
GOLDEN = (
    bytes.fromhex(
        "0000000000000000 00000049 ffffffff 02 132957bd 0000 00000001"
        "00000000000003e8 00000000000003e8 ffffffffffffffff ffff ffffffff 00000002"
    )
    + GOLDEN_BODY
)
GOLDEN_RECORDS = (
    Record(b"hello", b"k", (("h", b"v"),), timestamp_ms=1000),
    Record(None, None, (), timestamp_ms=990),
)

texts = st.text(max_size=8)
blobs = st.one_of(st.none(), st.binary(max_size=80), st.binary(min_size=200, max_size=300))
records = st.builds(
    Record,
    value=blobs,
    key=blobs,
    headers=st.lists(st.tuples(texts, blobs), max_size=3).map(tuple),
    timestamp_ms=st.one_of(st.none(), st.integers(0, 2**62), st.integers(NOW - 90, NOW + 90)),
)
record_lists = st.lists(records, min_size=1, max_size=12)


def stored(records: Sequence[Record], *, base_offset: int = 0) -> list[StoredRecord]:
    """Return what a reader should return for `records`, written at `NOW`."""
    return [
        StoredRecord(
            offset,
            NOW if record.timestamp_ms is None else record.timestamp_ms,
            record.key,
            record.value,
            record.headers,
        )
        for offset, record in enumerate(records, base_offset)
    ]


def assemble(body: bytes, *, template: bytes = GOLDEN, **fields: int) -> bytes:
    """Return a batch of any body, with correct length and checksum, and with changed fields."""
    header = decode_header(template)._replace(length=49 + len(body), **fields)
    return seal(header, body)


def seal(header: BatchHeader, body: bytes) -> bytes:
    tail = struct.pack(">hiqqqhii", *header[5:]) + body
    return struct.pack(">qiibI", *header[:4], crc32c(tail)) + tail
