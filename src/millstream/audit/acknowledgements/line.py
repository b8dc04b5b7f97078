"""Format of an acknowledgement file: one JSON object per line, each ended by a line feed.

    {"format":"millstream-acknowledgements","version":1}
    {"topic":"orders","partition":0,"offset":17,"key":"9c1f...","value":"03ab...","timestamp":17e11}
    {"topic":"orders","partition":2,"offset":4,"key":null,"value":"5e02...","headers":"2d06..."}

    topic, partition, offset   position of the record; offset -1: it was not reported
    key, value                 checksums, as 16 hexadecimal digits; null if there is none
    headers                    the same; left out if the writer did not know them
    timestamp                  milliseconds since 1970; left out if not known
    topic_id                   id of the topic, as a UUID; left out if not known
    committed                  true: the record was part of a transaction whose commit was
                               acknowledged

Unknown fields are ignored. A last line without a line feed was never finished.
"""

from __future__ import annotations

import uuid
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from millstream.errors import CorruptFile, UnknownFormat

FORMAT = "millstream-acknowledgements"
VERSION = 1

HEADER = b'{"format":"%s","version":%d}\n' % (FORMAT.encode(), VERSION)

LINE_SIZE_MAX = 4096
"""Largest line in bytes: many times the size of one with the longest topic name."""

NO_OFFSET = -1

_OFFSET_MAX = 2**63 - 1

_Checksum = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class AcknowledgementHeader(Struct):
    """First line of a file."""

    format: str
    version: int


class AcknowledgementLine(Struct, kw_only=True):
    """One acknowledgement, as stored."""

    topic: Annotated[str, Meta(min_length=1)]
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    offset: Annotated[int, Meta(ge=NO_OFFSET, le=_OFFSET_MAX)]
    key: _Checksum | None
    value: _Checksum | None
    headers: _Checksum | UnsetType = UNSET
    timestamp: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | UnsetType = UNSET
    topic_id: uuid.UUID | UnsetType = UNSET
    committed: bool = False


class Acknowledgement(Struct, kw_only=True, frozen=True):
    """One acknowledged record."""

    topic: str
    partition: int
    offset: int
    key: int | None
    """Checksum; `None` if there is no key."""
    value: int | None
    headers: int | None = None
    """Checksum; `None` if not known."""
    timestamp_ms: int | None = None
    topic_id: uuid.UUID | None = None
    is_committed: bool = False
    """Whether the commit of its transaction was acknowledged, and not only the record."""


_header_decoder = msgspec.json.Decoder(AcknowledgementHeader)
_decoder = msgspec.json.Decoder(AcknowledgementLine)
_encode = msgspec.json.Encoder().encode


def encode_line(acknowledgement: Acknowledgement) -> bytes:
    parts = [
        b'{"topic":%s,"partition":%d,"offset":%d,"key":%s,"value":%s'
        % (
            _encode(acknowledgement.topic),
            acknowledgement.partition,
            acknowledgement.offset,
            _digits(acknowledgement.key),
            _digits(acknowledgement.value),
        )
    ]
    if acknowledgement.headers is not None:
        parts.append(b',"headers":%s' % _digits(acknowledgement.headers))
    if acknowledgement.timestamp_ms is not None:
        parts.append(b',"timestamp":%d' % acknowledgement.timestamp_ms)
    if acknowledgement.topic_id is not None:
        parts.append(b',"topic_id":"%s"' % str(acknowledgement.topic_id).encode())
    if acknowledgement.is_committed:
        parts.append(b',"committed":true')
    parts.append(b"}\n")
    return b"".join(parts)


def decode_line(data: bytes) -> Acknowledgement:
    """Decode a line. Raises `CorruptFile`, without the line number."""
    try:
        line = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptFile(f"not an acknowledgement: {error}") from None
    return Acknowledgement(
        topic=line.topic,
        partition=line.partition,
        offset=line.offset,
        key=None if line.key is None else int(line.key, 16),
        value=None if line.value is None else int(line.value, 16),
        headers=None if line.headers is UNSET else int(line.headers, 16),
        timestamp_ms=None if line.timestamp is UNSET else line.timestamp,
        topic_id=None if line.topic_id is UNSET else line.topic_id,
        is_committed=line.committed,
    )


def check_header(data: bytes) -> None:
    """Raise unless the first line has a supported format and version."""
    try:
        head = _header_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptFile(f"not the first line of an acknowledgement file: {error}") from None
    if head.format != FORMAT:
        raise UnknownFormat(f"format must be {FORMAT!r}, got {head.format!r}")
    if head.version != VERSION:
        raise UnknownFormat(f"version must be {VERSION}, got {head.version}")


def _digits(number: int | None) -> bytes:
    return b"null" if number is None else b'"%016x"' % number
