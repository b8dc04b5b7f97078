"""Search for records without a key, which a compacted topic refuses, and for malformed ones."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TypeAlias

from millstream.records.batch import BatchHeader, Bytes, decode_header
from millstream.records.body import open_body
from millstream.records.compression import BODY_SIZE_MAX
from millstream.records.iterate import records_of

KeylessSearch: TypeAlias = Callable[[BatchHeader, Bytes, int], list[int]]

KEYLESS_MAX = 1_000
"""Records that are named to a client, which then gets an error for each of them."""

KERNEL_RECORDS_MIN = 256
"""With fewer, plain Python is done before the compiler would be loaded."""


def keyless_records(
    batch: Bytes, *, limit: int = KEYLESS_MAX, size_max: int = BODY_SIZE_MAX
) -> list[int]:
    """Return the indexes of the first `limit` records without a key.

    Every record is decoded, so a malformed batch raises `CorruptBatch`. The caller verifies the
    checksum. The batch may decompress to `size_max` bytes. An empty key is a key.
    """
    header = decode_header(batch)
    body = open_body(header, batch, size_max=size_max)
    find = _compiled() if header.record_count >= KERNEL_RECORDS_MIN else keyless_records_python
    return find(header, body, limit)


def check_records(batch: Bytes, *, size_max: int = BODY_SIZE_MAX) -> None:
    """Raise `CorruptBatch` unless all records of a batch can be decoded."""
    keyless_records(batch, size_max=size_max)


def keyless_records_python(header: BatchHeader, body: Bytes, limit: int) -> list[int]:
    """Reference in plain Python for `decoder_vectorized.keyless_records`."""
    keys = [record.key for record in records_of(header, body)]
    return list(islice((index for index, key in enumerate(keys) if key is None), limit))


def _compiled() -> KeylessSearch:
    """Return the compiled search, or the plain one without Numba."""
    try:
        from millstream.records.arrow.decoder_vectorized import keyless_records as find  # noqa: PLC0415 - an extra, and slow to load.
    except ImportError:
        return keyless_records_python
    return find
