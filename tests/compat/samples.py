"""Records that every client must encode and decode as we do."""

from __future__ import annotations

import pytest

from millstream.records.compression import Codec
from millstream.records.record import Record, StoredRecord

NOW = 1_700_000_000_000

RECORDS = (
    Record(b"plain", timestamp_ms=NOW),
    Record(b"with a key", b"key", timestamp_ms=NOW + 5),
    Record(None, b"a key without a value", timestamp_ms=NOW + 1),
    Record(b"", b"", timestamp_ms=NOW + 2),
    Record(b"with headers", b"key", (("one", b"1"), ("none", None), ("empty", b"")), NOW + 3),
    Record("grüße".encode(), None, (("schlüssel", "wert ✓".encode()), ("", b"")), NOW - 4),
    # Compressible and long, so that clients do compress, and numbers take several bytes.
    *(Record(b"value %d " % n * 300, b"key-%d" % n, timestamp_ms=NOW + n) for n in range(100)),
)

every_codec = pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())


def stored(records: tuple[Record, ...] = RECORDS, *, base_offset: int = 0) -> list[StoredRecord]:
    """Return `records` as a reader should return them."""
    return [
        StoredRecord(offset, r.timestamp_ms or 0, r.key, r.value, r.headers)
        for offset, r in enumerate(records, base_offset)
    ]
