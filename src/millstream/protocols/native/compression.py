"""Compressed payloads: which codec, how large the payload is without it, and the compressed bytes.

    +-------+------+---------------------------- - -
    | codec | size | compressed
    +-------+------+---------------------------- - -
      u8      u32    little-endian

Codec 1 is LZ4: the size once more, and one block. Codec 2 is zstd: one frame. What a payload may
grow to is limited before anything is decompressed, and again while that is done.
"""

from __future__ import annotations

import struct

import cramjam

from millstream.errors import CorruptBatch, MalformedRequest
from millstream.records.batch import Bytes
from millstream.records.compression import Codec, OversizedBody, decompress

LZ4, ZSTD = 1, 2

_HEAD = struct.Struct("<BI")
_SIZE = struct.Struct("<I")


def plain_size(payload: Bytes, *, size_max: int) -> int:
    """Return the size that a compressed payload claims to have without compression."""
    if len(payload) < _HEAD.size:
        raise MalformedRequest(
            f"a compressed payload must have at least {_HEAD.size} bytes, got {len(payload)}"
        )
    codec, size = _HEAD.unpack_from(payload)
    if codec not in (LZ4, ZSTD):
        raise MalformedRequest(f"codec of a payload must be {LZ4} or {ZSTD}, got {codec}")
    if size > size_max:
        raise MalformedRequest(
            f"a payload must have at most {size_max} bytes when decompressed, got {size}"
        )
    plain: int = size
    return plain


def decompress_payload(payload: Bytes, *, size_max: int) -> bytes:
    """Return a payload without compression; raise `MalformedRequest` if that is not possible."""
    size = plain_size(payload, size_max=size_max)
    codec, body = payload[0], memoryview(payload)[_HEAD.size :]
    plain = _decompress_lz4(body, size) if codec == LZ4 else _decompress_zstd(body, size)
    if len(plain) != size:
        raise MalformedRequest(f"a payload must decompress to {size} bytes, got {len(plain)}")
    return plain


def _decompress_lz4(body: memoryview, size: int) -> bytes:
    if len(body) < _SIZE.size or _SIZE.unpack_from(body)[0] != size:
        raise MalformedRequest(f"an LZ4 payload must begin with its size, {size}")
    output = bytearray(size)
    try:
        count = cramjam.lz4.decompress_block_into(body[_SIZE.size :], output, output_len=size)
    except cramjam.DecompressionError as error:
        raise MalformedRequest(f"a payload cannot be decompressed: {error}") from None
    return bytes(memoryview(output)[:count])


def _decompress_zstd(body: memoryview, size: int) -> bytes:
    try:
        return decompress(Codec.ZSTD, body, size_max=size)
    except (CorruptBatch, OversizedBody) as error:
        raise MalformedRequest(f"a payload cannot be decompressed: {error}") from None


def compress_payload(codec: int, payload: bytes) -> bytes:
    """Compress a payload, for clients."""
    head = _HEAD.pack(codec, len(payload))
    if codec == LZ4:
        block = bytes(cramjam.lz4.compress_block(payload, store_size=False))
        return head + _SIZE.pack(len(payload)) + block
    return head + bytes(cramjam.zstd.compress(payload))
