"""The four compression codecs of Kafka, each with a limit on the decompressed size.

gzip, lz4 and zstd bodies are one frame of that format. Snappy has two forms. librdkafka writes one
bare snappy block; Java writes the framing of the xerial library. We write the framing too, since
every client reads it:

     0                8         12           16           20
    +----------------+---------+------------+------------+---------- - -+------------+-- - -
    | 82 "SNAPPY" 00 | version | oldest     | block size | snappy block | block size |
    |                |    1    | reader   1 |            |              |            |
    +----------------+---------+------------+------------+---------- - -+------------+-- - -

Decompression writes into a buffer that starts small and grows up to the caller's limit, regardless
of the size that the data declares. So a decompression bomb costs memory up to the limit, twice
that while the result is copied out, and the time to decompress about four thirds of the limit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Protocol

import cramjam

from millstream.errors import CorruptBatch
from millstream.records.batch import Bytes

BODY_SIZE_MAX = 256 * 1024 * 1024
"""Four times the largest batch: more than producers send, and little enough for a small machine."""

_XERIAL_HEADER = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
_XERIAL_MAGIC_SIZE = 8
_XERIAL_BLOCK_SIZE = 32 * 1024
_BLOCK_SIZE = struct.Struct(">i")

_GZIP_LEVEL = 6
_LZ4_LEVEL = 1
_ZSTD_LEVEL = 3

# Few bodies shrink to less than an eighth, so the first buffer is nearly always large enough.
_GUESS_MIN = 64 * 1024
_GUESS_RATIO = 8
_GROWTH = 4

# Rust's message for a full output buffer; cramjam has no exception class for it.
_FULL = "failed to write whole buffer"


class OversizedBody(CorruptBatch):
    """A body decompresses to more bytes than allowed: a bomb, or a limit that is too low."""


class Codec(IntEnum):
    """Compression codec of a body; the numbers are those in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class _DecompressInto(Protocol):
    def __call__(self, data: Bytes, output: bytearray, /) -> int: ...


def compress(codec: Codec, data: Bytes) -> bytes:
    """Compress `data` in a form that every Kafka client can read."""
    return _COMPRESS[codec](data)


def decompress(codec: int, data: Bytes, *, size_max: int = BODY_SIZE_MAX) -> bytes:
    """Decompress `data`; raise `CorruptBatch` if it is damaged or exceeds `size_max`."""
    if codec == Codec.NONE:
        _check_size(len(data), size_max)
        return bytes(data)
    if codec == Codec.SNAPPY:
        return _decompress_snappy(memoryview(data), size_max)
    if codec not in _DECOMPRESS_INTO:
        raise CorruptBatch(f"codec must be between 0 and {max(Codec)}, got {codec}")
    return _decompress_growing(_DECOMPRESS_INTO[codec], data, size_max)


def _decompress_growing(into: _DecompressInto, data: Bytes, size_max: int) -> bytes:
    size = min(size_max, max(_GUESS_MIN, _GUESS_RATIO * len(data)))
    while (decompressed := _decompress_within(into, data, size)) is None:
        if size == size_max:
            raise OversizedBody(
                f"body of {len(data)} bytes decompresses to more than {size_max} bytes"
            )
        size = min(size_max, _GROWTH * size)
    return decompressed


def _decompress_within(into: _DecompressInto, data: Bytes, size: int) -> bytes | None:
    """Decompress into a buffer of `size` bytes; return `None` if that is too small."""
    buffer = bytearray(size)
    try:
        written = into(data, buffer)
    except cramjam.DecompressionError as error:
        if _FULL in str(error):
            return None
        raise CorruptBatch(f"body of {len(data)} bytes cannot be decompressed: {error}") from error
    return bytes(memoryview(buffer)[:written])


def _compress_snappy(data: Bytes) -> bytes:
    view = memoryview(data)
    pieces: list[Bytes] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_SIZE]))
        pieces += (_BLOCK_SIZE.pack(len(block)), block)
    return b"".join(pieces)


def _decompress_snappy(data: memoryview, size_max: int) -> bytes:
    """Decompress either form.

    Blocks declare their decompressed sizes, so the total is checked before any is decompressed.
    """
    is_xerial = data[:_XERIAL_MAGIC_SIZE] == _XERIAL_HEADER[:_XERIAL_MAGIC_SIZE]
    size_min = len(_XERIAL_HEADER) if is_xerial else 1
    if len(data) < size_min:
        raise CorruptBatch(f"snappy body must have at least {size_min} bytes, got {len(data)}")
    blocks = list(_xerial_blocks(data)) if is_xerial else [data]
    try:
        _check_size(sum(map(cramjam.snappy.decompress_raw_len, blocks)), size_max)
        return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"body of {len(data)} bytes cannot be decompressed: {error}") from error


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    position = len(_XERIAL_HEADER)
    while position < len(data):
        start = position + _BLOCK_SIZE.size
        if start > len(data):
            raise CorruptBatch(
                f"snappy body is truncated: a block size ends at byte {start},"
                f" the body at {len(data)}"
            )
        (size,) = _BLOCK_SIZE.unpack_from(data, position)
        position = start + size
        if size < 1 or position > len(data):
            raise CorruptBatch(
                f"snappy block must have {size} bytes, as its size field says,"
                f" got {len(data) - start}"
            )
        yield data[start:position]


def _compress_lz4(data: Bytes) -> bytes:
    """Compress into one frame of independent blocks: Java's reader refuses linked ones."""
    compressor = cramjam.lz4.Compressor(
        level=_LZ4_LEVEL, content_checksum=False, block_linked=False
    )
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


def _check_size(size: int, size_max: int) -> None:
    if size > size_max:
        raise OversizedBody(f"body must decompress to at most {size_max} bytes, got {size}")


_COMPRESS: dict[Codec, Callable[[Bytes], bytes]] = {
    Codec.NONE: bytes,
    Codec.GZIP: lambda data: bytes(cramjam.gzip.compress(data, level=_GZIP_LEVEL)),
    Codec.SNAPPY: _compress_snappy,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: lambda data: bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL)),
}

_DECOMPRESS_INTO: dict[int, _DecompressInto] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}
