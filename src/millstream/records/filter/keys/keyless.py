"""Search for records without a key, which a compacted topic refuses, and for malformed ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from millstream.records.batch import BatchHeader, Bytes, decode_header
from millstream.records.body import open_body
from millstream.records.compression import BODY_SIZE_MAX
from millstream.records.iterate import records_of

KeylessSearch: TypeAlias = Callable[[BatchHeader, Bytes], int | None]

KERNEL_RECORDS_MIN = 256
"""With fewer, plain Python is done before the compiler would be loaded."""


def first_keyless(batch: Bytes, *, size_max: int = BODY_SIZE_MAX) -> int | None:
    """Return the index of the first record without a key; `None` if all have one.

    Every record is decoded, so a malformed batch raises `CorruptBatch`. The caller verifies the
    checksum. The batch may decompress to `size_max` bytes. An empty key is a key.
    """
    header = decode_header(batch)
    body = open_body(header, batch, size_max=size_max)
    find = _compiled() if header.record_count >= KERNEL_RECORDS_MIN else first_keyless_python
    return find(header, body)


def check_records(batch: Bytes, *, size_max: int = BODY_SIZE_MAX) -> None:
    """Raise `CorruptBatch` unless all records of a batch can be decoded."""
    first_keyless(batch, size_max=size_max)


def first_keyless_python(header: BatchHeader, body: Bytes) -> int | None:
    """Reference in plain Python for `decoder_vectorized.first_keyless`."""
    keys = [record.key for record in records_of(header, body)]
    return keys.index(None) if None in keys else None


def _compiled() -> KeylessSearch:
    """Return the compiled search, or the plain one without Numba."""
    try:
        from millstream.records.arrow.decoder_vectorized import first_keyless as find  # noqa: PLC0415 - an extra, and slow to load.
    except ImportError:
        return first_keyless_python
    return find
