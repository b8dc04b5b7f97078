"""The kinds of value that Kafka's messages are made of.

Most kinds have two encodings: classic, and since KIP-482 flexible, which is more compact.

    kind            classic                          flexible
    BOOL, INT..     big endian, fixed size           the same
    UUID            16 bytes                         the same
    STRING          int16 size,     UTF-8            uvarint size + 1,  UTF-8
    BYTES, RECORDS  int32 size,     bytes            uvarint size + 1,  bytes
    ARRAY           int32 count,    items            uvarint count + 1, items
    null            size or count -1                 size or count 0
    struct          its fields                       its fields, then its tagged fields:
                                                     uvarint count, and of each
                                                     uvarint tag, uvarint size, value
    nullable struct int8: 1 and the struct, or -1    the same

A uvarint is encoded seven bits at a time, lowest first; the high bit says that more follow.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from millstream.errors import MalformedRequest

Buffer: TypeAlias = bytes | memoryview
Records: TypeAlias = Buffer | Sequence[Buffer]
"""Record batches to send: one buffer, or several in a row."""

NO_ID = uuid.UUID(int=0)
"""Stands for no topic and no directory."""

TEXT_SIZE_MAX = 0x7FFF
"""Limit of the classic encoding; Kafka applies it to the flexible one, too."""
UVARINT_SIZE_MAX = 5
UVARINT_MAX = 0xFFFF_FFFF

_TABLE_SIZE = 1024


@dataclass(frozen=True, slots=True)
class Fixed:
    """A number of fixed size."""

    code: str
    """Its letter in the `struct` module."""
    size: int


@dataclass(frozen=True, slots=True)
class Uuid:
    """A `uuid.UUID`; there is no null, but `NO_ID` stands for it."""


@dataclass(frozen=True, slots=True)
class Text:
    """A `str`."""

    is_nullable: bool = False


@dataclass(frozen=True, slots=True)
class Blob:
    """Opaque bytes; `bytes`, a copy."""

    is_nullable: bool = False


@dataclass(frozen=True, slots=True)
class RecordData:
    """Record batches, always nullable.

    They are read as a `memoryview` into the frame and written as `Records`: the encoder can keep
    the buffers separate, so that no batch is copied.
    """


@dataclass(frozen=True, slots=True)
class Array:
    """A tuple of items of one kind."""

    item: WireType
    is_nullable: bool = False


WireType: TypeAlias = Fixed | Uuid | Text | Blob | RecordData | Array | type
"""Type of a field; a class stands for the struct that it declares."""

BOOL = Fixed("?", 1)
INT8 = Fixed("b", 1)
INT16 = Fixed("h", 2)
INT32 = Fixed("i", 4)
INT64 = Fixed("q", 8)
UINT16 = Fixed("H", 2)
UINT32 = Fixed("I", 4)
FLOAT64 = Fixed("d", 8)
UUID = Uuid()
STRING = Text()
NULLABLE_STRING = Text(is_nullable=True)
BYTES = Blob()
NULLABLE_BYTES = Blob(is_nullable=True)
RECORDS = RecordData()
ARRAY = Array
NULLABLE_ARRAY = partial(Array, is_nullable=True)


def read_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    """Read the number at `position`; return it and the position after it.

    Raises `IndexError` if the bytes end within the number.
    """
    if (byte := data[position]) < 0x80:
        return byte, position + 1
    if (second := data[position + 1]) < 0x80:
        return byte & 0x7F | second << 7, position + 2
    if (third := data[position + 2]) < 0x80:  # Up to 2 MiB, as most batches are.
        return byte & 0x7F | (second & 0x7F) << 7 | third << 14, position + 3
    return _read_long(data, position)


def _read_long(data: Buffer, position: int) -> tuple[int, int]:
    number = 0
    for index in range(UVARINT_SIZE_MAX):
        byte = data[position + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if number > UVARINT_MAX:
                raise MalformedRequest(
                    f"number at byte {position} is {number}, limit is {UVARINT_MAX}"
                )
            return number, position + index + 1
    raise MalformedRequest(f"number at byte {position} is longer than {UVARINT_SIZE_MAX} bytes")


def encode_uvarint(number: int) -> bytes:
    """Return the bytes of `number`."""
    if 0 <= number < _TABLE_SIZE:
        return UVARINTS[number]
    return _encode_uvarint(number)


def _encode_uvarint(number: int) -> bytes:
    if not 0 <= number <= UVARINT_MAX:
        raise ValueError(f"number must be between 0 and {UVARINT_MAX}, got {number}")
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


UVARINTS = tuple(_encode_uvarint(number) for number in range(_TABLE_SIZE))
"""Encodings of small numbers, which nearly all sizes and counts are."""
