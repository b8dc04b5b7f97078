"""The format of an acknowledgement file: JSON, one object a line, each ended by a line feed.

    {"format":"millstream-acknowledgements","version":1}
    {"topic":"orders","partition":0,"offset":17,"key":"9c1f...","value":"03ab...","timestamp":17e11}
    {"topic":"orders","partition":2,"offset":4,"key":null,"value":"5e02...","headers":"2d06..."}

    topic, partition, offset   where the record is said to be; an offset of -1: nobody said where
    key, value                 their sums, as 16 hexadecimal digits; null where there is none
    headers                    the same; left out where whoever wrote the line did not know them
    timestamp                  milliseconds since 1970; left out where it was not known
    topic_id                   the id of the topic, as a UUID; left out where it was not known
    committed                  true: the record was part of a transaction, and so is its commit what
                               was acknowledged

Other fields are passed over. A last line without a line feed is one that was never finished.
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
"""Bytes of a line: many times what one with the longest name of a topic has."""

NO_OFFSET = -1

_OFFSET_MAX = 2**63 - 1

_Checksum = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class AcknowledgementHeader(Struct):
    """The first line."""

    format: str
    version: int


class AcknowledgementLine(Struct, kw_only=True):
    """One acknowledgement, as it is written."""

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
    """One record that was acknowledged."""

    topic: str
    partition: int
    offset: int
    key: int | None
    """Its sum; nothing where there is no key."""
    value: int | None
    headers: int | None = None
    """Nothing where it is not known."""
    timestamp_ms: int | None = None
    topic_id: uuid.UUID | None = None
    is_committed: bool = False
    """Whether the commit of its transaction was acknowledged, and not only the record."""


_header_decoder = msgspec.json.Decoder(AcknowledgementHeader)
_decoder = msgspec.json.Decoder(AcknowledgementLine)
_quoted = msgspec.json.Encoder().encode


def encode_line(one: Acknowledgement) -> bytes:
    """Return the line of an acknowledgement."""
    parts = [
        b'{"topic":%s,"partition":%d,"offset":%d,"key":%s,"value":%s'
        % (_quoted(one.topic), one.partition, one.offset, _digits(one.key), _digits(one.value))
    ]
    if one.headers is not None:
        parts.append(b',"headers":%s' % _digits(one.headers))
    if one.timestamp_ms is not None:
        parts.append(b',"timestamp":%d' % one.timestamp_ms)
    if one.topic_id is not None:
        parts.append(b',"topic_id":"%s"' % str(one.topic_id).encode())
    if one.is_committed:
        parts.append(b',"committed":true')
    parts.append(b"}\n")
    return b"".join(parts)


def decode_line(data: bytes) -> Acknowledgement:
    """Read a line; raises `CorruptFile`, without saying where it stands."""
    try:
        line = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptFile(f"this is no acknowledgement: {error}") from None
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
    """Raise unless a first line says that we can read the others."""
    try:
        head = _header_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptFile(
            f"this is not the first line of an acknowledgement file: {error}"
        ) from None
    if head.format != FORMAT:
        raise UnknownFormat(f"found format {head.format!r}, known is {FORMAT!r}")
    if head.version != VERSION:
        raise UnknownFormat(f"found version {head.version}, known is {VERSION}")


def _digits(number: int | None) -> bytes:
    return b"null" if number is None else b'"%016x"' % number
