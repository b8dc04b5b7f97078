"""The four compression codecs of Kafka, each with a limit on the decompressed size.

gzip, lz4 and zstd bodies are one frame of that format. Snappy has two forms. librdkafka writes one
bare snappy block; Java writes the framing of the xerial library. We write the framing too, since
every client reads it:

     0                8         12           16           20
    +----------------+---------+------------+------------+---------- - -+------------+-- - -
    | 82 "SNAPPY" 00 | version | oldest     | block size | snappy block | block size |
    |                |    1    | reader   1 |            |              |            |
    +----------------+---------+------------+------------+---------- - -+------------+-- - -

The output is limited by the caller. A body that declares more than the limit is refused before
anything is decompressed. Otherwise it is decompressed into a buffer of the declared or likely size,
and if that is too small, once more into one of the limit, whose memory is used only as far as it is
filled. So a decompression bomb costs memory up to the limit, and twice that while a result is
copied out, whatever it declares.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Protocol

import cramjam

from millstream.errors import CorruptBatch
from millstream.records.batch import Bytes

BODY_SIZE_MAX = 64 * 1024 * 1024
"""The largest body, decompressed: that of the largest batch without compression. Text shrinks to a
tenth, so a batch of the default size limit, 1 MiB, stays far below it; a bomb does not.
"""

ZSTD_WINDOW_MIN = 8 * 1024 * 1024
"""A zstd frame may have a window of this size, which every decoder has to support, or of the limit
of its decompressed size, if that is more: the decoder keeps it in memory beside the output.
"""

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

_MAPPED_SIZE_MIN = 1024 * 1024
"""Buffers from this size on are mapped: a `bytearray` would fill them with zeros first, and hold
the interpreter lock meanwhile.
"""

_GZIP_MAGIC = bytes.fromhex("1f8b")
_GZIP_TRAILER_SIZE = 8
_ZSTD_MAGIC = bytes.fromhex("28b52ffd")
_ZSTD_DICTIONARY_SIZES = (0, 1, 2, 4)
_ZSTD_CONTENT_SIZES = (0, 2, 4, 8)
_LZ4_MAGIC = bytes.fromhex("04224d18")
_LZ4_HAS_CONTENT_SIZE = 0x08
_LZ4_CONTENT_SIZE_AT = 6
_VARINT_SIZE_MAX = 5

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
    def __call__(self, data: Bytes, output: memoryview, /) -> int: ...


def compress(codec: Codec, data: Bytes) -> bytes:
    """Compress `data` in a form that every Kafka client can read."""
    return _COMPRESS[codec](data)


def declared_size(codec: int, data: Bytes) -> int | None:
    """Return the decompressed size that `data` declares, without a look at the compressed bytes.

    The value is what a client wrote: it may be wrong, and more may follow. `None` means that it is
    not declared, or not in a fixed place, as in the framing of snappy.
    """
    if codec == Codec.NONE:
        return len(data)
    find = _DECLARED_SIZE.get(codec)
    return None if find is None else find(memoryview(data))


def decompress(codec: int, data: Bytes, *, size_max: int = BODY_SIZE_MAX) -> bytes:
    """Decompress `data`; raise `CorruptBatch` if it is damaged, `OversizedBody` if it is too large.

    It is too large if it has more than `size_max` bytes, or a zstd window of more than that and
    `ZSTD_WINDOW_MIN`.
    """
    declared = declared_size(codec, data)
    if declared is not None and declared > size_max:
        raise _oversized(len(data), size_max, declared)
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.SNAPPY:
        return _decompress_snappy(memoryview(data), size_max)
    if codec not in _DECOMPRESS_INTO:
        raise CorruptBatch(f"codec must be between 0 and {max(Codec)}, got {codec}")
    if codec == Codec.ZSTD:
        _check_zstd_window(memoryview(data), max(size_max, ZSTD_WINDOW_MIN))
    likely = max(_GUESS_MIN, _GUESS_RATIO * len(data)) if declared is None else declared
    return _decompress_within(_DECOMPRESS_INTO[codec], data, min(likely, size_max), size_max)


def _decompress_within(into: _DecompressInto, data: Bytes, size: int, size_max: int) -> bytes:
    """Decompress into a buffer of `size` bytes, or of `size_max` if that is too small."""
    while (body := _decompress_up_to(into, data, size)) is None:
        if size == size_max:
            raise _oversized(len(data), size_max)
        size = size_max
    return body


def _decompress_up_to(into: _DecompressInto, data: Bytes, size: int) -> bytes | None:
    """Decompress into a buffer of `size` bytes; return None if that is too small."""
    buffer = _make_buffer(size)
    try:
        return bytes(buffer[: into(data, buffer)])
    except cramjam.DecompressionError as error:
        if _FULL in str(error):
            return None
        raise CorruptBatch(f"body of {len(data)} bytes cannot be decompressed: {error}") from error
    finally:
        del buffer  # An error refers to this frame, and is kept longer than the memory may be.


def _oversized(stored: int, size_max: int, declared: int | None = None) -> OversizedBody:
    by_itself = "" if declared is None else f": it declares {declared}"
    return OversizedBody(
        f"body of {stored} bytes decompresses to more than {size_max} bytes{by_itself}"
    )


def _make_buffer(size: int) -> memoryview:
    return memoryview(bytearray(size) if size < _MAPPED_SIZE_MIN else mmap.mmap(-1, size))


def _gzip_size(data: memoryview) -> int | None:
    """Return the size of the last member: the last four bytes, the lowest first."""
    is_gzip = len(data) > _GZIP_TRAILER_SIZE and data[:2] == _GZIP_MAGIC
    return int.from_bytes(data[-4:], "little") if is_gzip else None


def _snappy_size(data: memoryview) -> int | None:
    """Return the size of a bare block: the varint at its start, seven bits a byte."""
    size = shift = 0
    for byte in data[:_VARINT_SIZE_MAX]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return None if _is_xerial(data) else size
        shift += 7
    return None


def _lz4_size(data: memoryview) -> int | None:
    has_size = len(data) > _LZ4_CONTENT_SIZE_AT + 8 and data[4] & _LZ4_HAS_CONTENT_SIZE
    if not has_size or data[:4] != _LZ4_MAGIC:
        return None
    return int.from_bytes(data[_LZ4_CONTENT_SIZE_AT : _LZ4_CONTENT_SIZE_AT + 8], "little")


def _zstd_size(data: memoryview) -> int | None:
    return _zstd_header(data)[0]


def _check_zstd_window(data: memoryview, window_max: int) -> None:
    if (window := _zstd_header(data)[1]) > window_max:
        raise OversizedBody(
            f"zstd body must have a window of at most {window_max} bytes, got {window}"
        )


def _zstd_header(data: memoryview) -> tuple[int | None, int]:
    """Return content size and window of the first frame; no size and 0 if it declares none.

    A frame begins with its magic, a byte of flags, the window unless the frame is a single segment,
    the id of a dictionary and the content size, of which all but the first two may be missing.
    """
    if len(data) < len(_ZSTD_MAGIC) + 2 or data[:4] != _ZSTD_MAGIC:
        return None, 0
    flags = data[4]
    is_single = bool(flags & 0x20)
    window = 0
    if not is_single:
        window = 1 << (10 + (data[5] >> 3))
        window += (window >> 3) * (data[5] & 7)
    at = 5 + (not is_single) + _ZSTD_DICTIONARY_SIZES[flags & 3]
    size = _ZSTD_CONTENT_SIZES[flags >> 6] or is_single
    if not size or at + size > len(data):
        return None, window
    content = int.from_bytes(data[at : at + size], "little")
    return content + 256 if size == 2 else content, window


def _compress_snappy(data: Bytes) -> bytes:
    view = memoryview(data)
    pieces: list[Bytes] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_SIZE]))
        pieces += (_BLOCK_SIZE.pack(len(block)), block)
    return b"".join(pieces)


def _is_xerial(data: memoryview) -> bool:
    return data[:_XERIAL_MAGIC_SIZE] == _XERIAL_HEADER[:_XERIAL_MAGIC_SIZE]


def _decompress_snappy(data: memoryview, size_max: int) -> bytes:
    """Decompress either form.

    Blocks declare their decompressed sizes, so the total is checked before any is decompressed.
    """
    is_xerial = _is_xerial(data)
    size_min = len(_XERIAL_HEADER) if is_xerial else 1
    if len(data) < size_min:
        raise CorruptBatch(f"snappy body must have at least {size_min} bytes, got {len(data)}")
    # A body may have very many blocks, so they are found twice rather than kept.
    blocks = _xerial_blocks if is_xerial else lambda block: iter((block,))
    try:
        size = sum(map(cramjam.snappy.decompress_raw_len, blocks(data)))
        if size > size_max:
            raise _oversized(len(data), size_max, size)
        buffer, written = _make_buffer(size), 0
        for block in blocks(data):
            written += cramjam.snappy.decompress_raw_into(block, buffer[written:])
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"body of {len(data)} bytes cannot be decompressed: {error}") from error
    return bytes(buffer[:written])


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

_DECLARED_SIZE: dict[int, Callable[[memoryview], int | None]] = {
    Codec.GZIP: _gzip_size,
    Codec.SNAPPY: _snappy_size,
    Codec.LZ4: _lz4_size,
    Codec.ZSTD: _zstd_size,
}
