"""The four codecs that Kafka knows, each with a limit on what it may unpack to.

gzip, lz4 and zstd bodies are one frame of that format. Snappy comes in two shapes. librdkafka
writes one bare snappy block; Java writes the framing of the xerial library, and so do we, since
every client reads it:

     0                8         12           16           20
    +----------------+---------+------------+------------+---------- - -+------------+-- - -
    | 82 "SNAPPY" 00 | version | oldest     | block size | snappy block | block size |
    |                |    1    | reader   1 |            |              |            |
    +----------------+---------+------------+------------+---------- - -+------------+-- - -

Unpacking writes into a buffer that starts small and grows up to the caller's limit, whatever the
data says of itself. So a bomb costs the memory of the limit, twice while the result is copied
out, and the time to unpack about four thirds of it.
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
"""Four times the largest batch: above what producers send, below what hurts a small machine."""

_XERIAL_HEADER = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
_XERIAL_MAGIC_SIZE = 8
_XERIAL_BLOCK_SIZE = 32 * 1024
_BLOCK_SIZE = struct.Struct(">i")

_GZIP_LEVEL = 6
_LZ4_LEVEL = 1
_ZSTD_LEVEL = 3

# Most bodies shrink to an eighth at best, so that the first buffer is nearly always enough.
_GUESS_MIN = 64 * 1024
_GUESS_RATIO = 8
_GROWTH = 4

# Rust's words for an output buffer that is full; cramjam has no error of its own for it.
_FULL = "failed to write whole buffer"


class OversizedBody(CorruptBatch):
    """A body unpacks to more than is allowed: a bomb, or a limit that is too low."""


class Codec(IntEnum):
    """How a body is packed; the numbers are those in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class _DecompressInto(Protocol):
    def __call__(self, data: Bytes, output: bytearray, /) -> int: ...


def compress(codec: Codec, data: Bytes) -> bytes:
    """Pack `data` so that every Kafka client can read it."""
    return _COMPRESS[codec](data)


def decompress(codec: int, data: Bytes, *, size_max: int = BODY_SIZE_MAX) -> bytes:
    """Unpack `data`, or raise `CorruptBatch` where it is damaged or unpacks to over `size_max`."""
    if codec == Codec.NONE:
        _check_size(len(data), size_max)
        return bytes(data)
    if codec == Codec.SNAPPY:
        return _decompress_snappy(memoryview(data), size_max)
    if codec not in _DECOMPRESS_INTO:
        raise CorruptBatch(f"codec is {codec}, known are 0-{max(Codec)}")
    return _decompress_growing(_DECOMPRESS_INTO[codec], data, size_max)


def _decompress_growing(into: _DecompressInto, data: Bytes, size_max: int) -> bytes:
    size = min(size_max, max(_GUESS_MIN, _GUESS_RATIO * len(data)))
    while (found := _decompress_within(into, data, size)) is None:
        if size == size_max:
            raise OversizedBody(f"body of {len(data)} bytes unpacks to over {size_max} bytes")
        size = min(size_max, _GROWTH * size)
    return found


def _decompress_within(into: _DecompressInto, data: Bytes, size: int) -> bytes | None:
    """Unpack into a buffer of `size` bytes; `None` where that is not enough."""
    buffer = bytearray(size)
    try:
        written = into(data, buffer)
    except cramjam.DecompressionError as error:
        if _FULL in str(error):
            return None
        raise CorruptBatch(f"body of {len(data)} bytes does not unpack: {error}") from error
    return bytes(memoryview(buffer)[:written])


def _compress_snappy(data: Bytes) -> bytes:
    view = memoryview(data)
    pieces: list[Bytes] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_SIZE]))
        pieces += (_BLOCK_SIZE.pack(len(block)), block)
    return b"".join(pieces)


def _decompress_snappy(data: memoryview, size_max: int) -> bytes:
    """Unpack both shapes; blocks say their size, so all are summed before any is unpacked."""
    is_xerial = data[:_XERIAL_MAGIC_SIZE] == _XERIAL_HEADER[:_XERIAL_MAGIC_SIZE]
    size_min = len(_XERIAL_HEADER) if is_xerial else 1
    if len(data) < size_min:
        raise CorruptBatch(f"snappy body needs {size_min} bytes, found {len(data)}")
    blocks = list(_xerial_blocks(data)) if is_xerial else [data]
    try:
        _check_size(sum(map(cramjam.snappy.decompress_raw_len, blocks)), size_max)
        return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"body of {len(data)} bytes does not unpack: {error}") from error


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    position = len(_XERIAL_HEADER)
    while position < len(data):
        start = position + _BLOCK_SIZE.size
        if start > len(data):
            raise CorruptBatch(f"snappy block size ends at byte {start}, body at {len(data)}")
        (size,) = _BLOCK_SIZE.unpack_from(data, position)
        position = start + size
        if size < 1 or position > len(data):
            raise CorruptBatch(f"snappy block claims {size} bytes, found {len(data) - start}")
        yield data[start:position]


def _compress_lz4(data: Bytes) -> bytes:
    """Pack into one frame of independent blocks: Java's reader refuses linked ones."""
    packer = cramjam.lz4.Compressor(level=_LZ4_LEVEL, content_checksum=False, block_linked=False)
    packer.compress(bytes(data))
    return bytes(packer.finish())


def _check_size(size: int, size_max: int) -> None:
    if size > size_max:
        raise OversizedBody(f"body unpacks to {size} bytes, limit is {size_max}")


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
