"""Looking for records without a key, which a compacted topic cannot take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from millstream.records.batch import BatchHeader, Bytes, decode_header
from millstream.records.body import open_body
from millstream.records.compression import BODY_SIZE_MAX
from millstream.records.iterate import records_of

KeylessSearch: TypeAlias = Callable[[BatchHeader, Bytes], int | None]

KERNEL_RECORDS_MIN = 256
"""Below this, plain Python is done before the compiler would have been loaded."""


def first_keyless(batch: Bytes, *, size_max: int = BODY_SIZE_MAX) -> int | None:
    """Return the index of the first record without a key; `None` where all have one.

    Every record is decoded, so a batch that is not sound raises `CorruptBatch`. Its sum is the
    caller's to check, and it may unpack to `size_max` bytes. An empty key is a key.
    """
    header = decode_header(batch)
    body = open_body(header, batch, size_max=size_max)
    find = _compiled() if header.record_count >= KERNEL_RECORDS_MIN else first_keyless_python
    return find(header, body)


def first_keyless_python(header: BatchHeader, body: Bytes) -> int | None:
    """Do in plain Python what `vectors.first_keyless` does with a kernel."""
    keys = [record.key for record in records_of(header, body)]
    return keys.index(None) if None in keys else None


def _compiled() -> KeylessSearch:
    """Find the compiled search, or the plain one where Numba is missing."""
    try:
        from millstream.records.arrow.decoder_vectorized import first_keyless as find  # noqa: PLC0415 - an extra, and slow to load.
    except ImportError:
        return first_keyless_python
    return find
