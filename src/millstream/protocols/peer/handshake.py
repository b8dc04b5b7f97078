"""The handshake: the first frame in each direction.

     0      4            8          10
    +------+------------+----------+------------------------------------------+
    | size | "MILL"     | protocol | HandshakeRequest, or HandshakeResponse   |
    |      |            | version  | of that version                          |
    +------+------------+----------+------------------------------------------+

Nothing else is read before it. The side that connected says who it is, whom it wants to reach and
for what; the other side says who it is, or refuses with a code and a text. A refusal names nothing
of the cluster. Both sides list the APIs that they know, so that nodes of two releases use the
newest version that both have.

The layout up to the protocol version never changes: a node that does not know the version can say
so.
"""

from __future__ import annotations

import enum
import struct
import uuid
from collections.abc import Iterable, Mapping
from typing import Final

from millstream.errors import MalformedRequest, UnsupportedVersion
from millstream.protocols.kafka.codec.declaration import Versions
from millstream.protocols.kafka.codec.message import decode, encode, message, wire
from millstream.protocols.kafka.codec.message import struct as wire_struct
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    INT8,
    INT16,
    INT32,
    INT64,
    NO_ID,
    STRING,
    UUID,
)

MAGIC: Final = b"MILL"
PROTOCOL = Versions(first=1, last=1, flexible=0)
HANDSHAKE_SIZE_MAX: Final = 16 * 1024
"""Larger first frames are refused before they are read."""

_PREFIX = struct.Struct(">4sh")
_SIZE = struct.Struct(">i")


class Purpose(enum.IntEnum):
    """What a connection is for. Each has connections of its own, so that none delays another."""

    REPLICATION = 1
    FORWARDING = 2
    ADMIN = 3


@wire_struct
class HandshakeApi:
    """An API and the versions of it that a node knows."""

    key: int = wire(INT16)
    first: int = wire(INT16)
    last: int = wire(INT16)


@message(PROTOCOL)
class HandshakeRequest:
    """Who connects, to whom, and for what."""

    cluster_id: str = wire(STRING)
    node_id: int = wire(INT32)
    incarnation: uuid.UUID = wire(UUID)
    target_node_id: int = wire(INT32)
    software_version: str = wire(STRING)
    purpose: int = wire(INT8)
    hlc: int = wire(INT64)
    apis: tuple[HandshakeApi, ...] = wire(ARRAY(HandshakeApi))


@message(PROTOCOL)
class HandshakeResponse:
    """Who was reached, or why not; then everything but the error is empty."""

    error_code: int = wire(INT16, default=0)
    error_message: str = wire(STRING, default="")
    cluster_id: str = wire(STRING, default="")
    node_id: int = wire(INT32, default=-1)
    incarnation: uuid.UUID = wire(UUID, default=NO_ID)
    software_version: str = wire(STRING, default="")
    hlc: int = wire(INT64, default=0)
    apis: tuple[HandshakeApi, ...] = wire(ARRAY(HandshakeApi), default=())


def encode_handshake(value: HandshakeRequest | HandshakeResponse) -> bytes:
    """Encode the first frame, with its size."""
    body = encode(value, PROTOCOL.last)
    size = _PREFIX.size + len(body)
    return _SIZE.pack(size) + _PREFIX.pack(MAGIC, PROTOCOL.last) + body


def decode_handshake_request(frame: memoryview) -> HandshakeRequest:
    """Decode the first frame of the side that connected.

    Raises `MalformedRequest`, or `UnsupportedVersion` if it has a protocol version of another
    release.
    """
    return decode(HandshakeRequest, *_body_of(frame))


def decode_handshake_response(frame: memoryview) -> HandshakeResponse:
    """Decode the first frame of the side that was connected to; raises as for a request."""
    return decode(HandshakeResponse, *_body_of(frame))


def _body_of(frame: memoryview) -> tuple[memoryview, int]:
    if len(frame) < _PREFIX.size:
        raise MalformedRequest(
            f"handshake has {len(frame)} bytes, must have at least {_PREFIX.size}"
        )
    magic, version = _PREFIX.unpack_from(frame)
    if magic != MAGIC:
        raise MalformedRequest(f"handshake must start with {MAGIC!r}, got {magic!r}")
    if version not in PROTOCOL:
        raise UnsupportedVersion(
            f"protocol version must be between {PROTOCOL.first} and {PROTOCOL.last}, got {version}"
        )
    return frame[_PREFIX.size :], version


def common_versions(
    known: Iterable[HandshakeApi], announced: Iterable[HandshakeApi]
) -> Mapping[int, int]:
    """Return the newest version of each API that both sides know, by key."""
    theirs = {api.key: api for api in announced}
    common = {}
    for ours in known:
        if (other := theirs.get(ours.key)) is not None:
            version = min(ours.last, other.last)
            if version >= max(ours.first, other.first):
                common[ours.key] = version
    return common
