"""Proof that two replicas are equal, without comparing their bytes.

Uncleaned segments are equal to the byte, and so are their seals, except for the dates: each node
dates a segment by a retention clock of its own. `segment_identity` is the seal without them. It
has the digest of all batch headers, each of which has the checksum of its records, so two segments
with one identity hold the same bytes.

Cleaning is done by each replica for itself: it may remove a record later on one replica than on
another, merge other segments, and put fillers elsewhere. So cleaned segments differ in their bytes,
and are equal if the same records are left. `RecordDigest` covers offset, timestamp, key, value and
headers of all records of a range of offsets, and nothing of how they are packed into batches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace

from xxhash import xxh3_128

from millstream.records.batch import Bytes, decode_header
from millstream.records.iterate import read_records
from millstream.storage.files.seal import Seal, encode_seal

_RECORD = struct.Struct("<qqqqi")
_HEADER = struct.Struct("<qq")
_NONE = -1


def segment_identity(seal: Seal) -> bytes:
    """Return what is equal in the seals of all replicas of an uncleaned segment."""
    return encode_seal(replace(seal, created_ms=0, sealed_ms=0))


class RecordDigest:
    """Digest of the records in a range of offsets: equal for the same records in any batches."""

    def __init__(self) -> None:
        self._hash = xxh3_128()
        self.record_count = 0

    def add(self, batch: Bytes, *, start: int = 0, end: int = 2**63 - 1) -> None:
        """Add the records of a batch from offset `start` on, up to before `end`.

        Control batches have none: no application sees them, and when cleaning removes a marker or a
        decision depends on how segments are grouped.
        """
        if decode_header(batch).is_control:
            return
        for record in read_records(batch):
            if not start <= record.offset < end:
                continue
            self.record_count += 1
            key, value, headers = record.key, record.value, record.headers
            self._hash.update(
                _RECORD.pack(
                    record.offset,
                    record.timestamp_ms,
                    _NONE if key is None else len(key),
                    _NONE if value is None else len(value),
                    len(headers),
                )
            )
            self._hash.update(key or b"")
            self._hash.update(value or b"")
            for name, content in headers:
                name_bytes = name.encode()
                size = _NONE if content is None else len(content)
                self._hash.update(_HEADER.pack(len(name_bytes), size))
                self._hash.update(name_bytes)
                self._hash.update(content or b"")

    def digest(self) -> bytes:
        """Return the digest of the records added so far: 16 bytes."""
        return self._hash.digest()


def record_digest(batches: Iterable[Bytes], *, start: int, end: int) -> bytes:
    """Return the digest of all records from offset `start` on, up to before `end`."""
    digest = RecordDigest()
    for batch in batches:
        digest.add(batch, start=start, end=end)
    return digest.digest()
