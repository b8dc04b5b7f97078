"""Zigzag varints: the encoding of every number inside a record.

Zigzag first folds the sign into the lowest bit, so that small negative numbers stay small; the
result is written seven bits at a time, lowest first, and the high bit means that more follow.

     0 -> 0    -1 -> 1    1 -> 2    -2 -> 3          150 -> 300 = 10 0101100

    +---+---------+  +---+---------+
    | 1 | 0101100 |  | 0 | 0000010 |      at most 5 bytes for a varint  (32 bits)
    +---+---------+  +---+---------+      and    10 bytes for a varlong (64 bits)
    more   lowest    last

A number that needs more bits than its type has is refused, in both directions.
"""

from __future__ import annotations

from millstream.errors import CorruptBatch
from millstream.records.batch import Bytes

VARINT_SIZE_MAX = 5
VARLONG_SIZE_MAX = 10

_TABLE_MAX = 2048
_TWO_BYTES_MIN = 1 << 6
_TWO_BYTES_END = 1 << 13
_THREE_BYTES_END = 1 << 20


def read_varint(data: Bytes, position: int) -> tuple[int, int]:
    """Read a 32-bit number at `position`; return it and the position after it."""
    try:
        if (byte := data[position]) < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
    except IndexError:
        raise _truncated(data, position) from None
    return _read_long(data, position, VARINT_SIZE_MAX, 32)


def read_varlong(data: Bytes, position: int) -> tuple[int, int]:
    """Read a 64-bit number at `position`; return it and the position after it."""
    try:
        if (byte := data[position]) < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
    except IndexError:
        raise _truncated(data, position) from None
    return _read_long(data, position, VARLONG_SIZE_MAX, 64)


def encode_varint(number: int) -> bytes:
    """Encode a 32-bit number; raise `OverflowError` if it does not fit."""
    if 0 <= number < _TABLE_MAX:
        return _TABLE[number]
    return _encode(number, 32)


def encode_varlong(number: int) -> bytes:
    """Encode a 64-bit number; raise `OverflowError` if it does not fit."""
    if 0 <= number < _TABLE_MAX:
        return _TABLE[number]
    return _encode(number, 64)


def _read_long(data: Bytes, start: int, size_max: int, bits: int) -> tuple[int, int]:
    folded = 0
    for position, byte in enumerate(data[start : start + size_max], start):
        folded |= (byte & 0x7F) << 7 * (position - start)
        if byte < 0x80:
            if folded >> bits:
                raise CorruptBatch(f"number at byte {start} does not fit into {bits} bits")
            return (folded >> 1) ^ -(folded & 1), position + 1
    if len(data) - start < size_max:
        raise _truncated(data, start)
    raise CorruptBatch(f"number at byte {start} has more than {size_max} bytes")


def _truncated(data: Bytes, position: int) -> CorruptBatch:
    return CorruptBatch(f"number at byte {position} is truncated: the data ends at {len(data)}")


def _encode(number: int, bits: int) -> bytes:
    if _TWO_BYTES_MIN <= number < _TWO_BYTES_END:
        return bytes((number << 1 & 0x7F | 0x80, number >> 6))
    if _TWO_BYTES_END <= number < _THREE_BYTES_END:
        return bytes((number << 1 & 0x7F | 0x80, number >> 6 & 0x7F | 0x80, number >> 13))
    folded = (number << 1) ^ (number >> bits - 1)
    if not 0 <= folded < 1 << bits:
        raise OverflowError(f"{number} does not fit into {bits} bits")
    out = bytearray()
    while folded >= 0x80:
        out.append(folded & 0x7F | 0x80)
        folded >>= 7
    out.append(folded)
    return bytes(out)


# Lengths and offset deltas are nearly always small; a table lookup is three times as fast.
_TABLE = tuple(_encode(number, 32) for number in range(_TABLE_MAX))
