"""Messages: plain values, and their bytes on the wire.

    heartbeat = decode(HeartbeatRequest, body, version)
    answer = encode(HeartbeatResponse(error_code=0), version)

The layout of each version is derived from the declaration of the message, and compiled to a decoder
and an encoder when that version is first used.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeVar

from millstream.errors import UnsupportedVersion
from millstream.protocols.kafka.codec.declaration import (
    NEVER,
    Versions,
    message,
    struct,
    versions_of,
    wire,
)
from millstream.protocols.kafka.codec.decoder import Decoder, build_decoder
from millstream.protocols.kafka.codec.encoder import Encoder, build_encoder
from millstream.protocols.kafka.codec.primitives import Buffer

__all__ = [
    "NEVER",
    "Versions",
    "decode",
    "encode",
    "encode_parts",
    "message",
    "struct",
    "versions_of",
    "wire",
]

M = TypeVar("M")

_decoders: defaultdict[type, dict[int, Decoder]] = defaultdict(dict)
_encoders: defaultdict[type, dict[int, Encoder]] = defaultdict(dict)


def decode(kind: type[M], data: Buffer, version: int, *, is_exact: bool = True) -> M:
    """Decode one message, which must fill `data`; raises `MalformedRequest` otherwise.

    Unless `is_exact`, bytes may follow it: Kafka ignores them, and librdkafka 2.12 leaves three
    behind when it asks for all topics. The message's records are views into `data`; everything else
    is copied out of it. Unknown tagged fields are skipped; if a tag is repeated, the last value
    counts, in any order.
    """
    try:
        decoder = _decoders[kind][version]
    except KeyError:
        is_flexible = _check_version(kind, version)
        decoder = build_decoder(kind, version, is_flexible=is_flexible)
        _decoders[kind][version] = decoder
    value: M = decoder(data if type(data) is memoryview else memoryview(data), is_exact)
    return value


def encode(value: object, version: int) -> bytes:
    """Encode one message. Fields that `version` does not have are left out.

    Raises `ValueError` if a value does not fit its field: a number too large, a null that is not
    allowed.
    """
    return b"".join(encode_parts(value, version))


def encode_parts(value: object, version: int) -> list[Buffer]:
    """Encode one message like `encode`, in parts: the buffers of records are not copied."""
    kind = type(value)
    try:
        encoder = _encoders[kind][version]
    except KeyError:
        is_flexible = _check_version(kind, version)
        encoder = build_encoder(kind, version, is_flexible=is_flexible)
        _encoders[kind][version] = encoder
    return encoder(value)


def _check_version(kind: type, version: int) -> bool:
    """Return whether the version is flexible; raises `UnsupportedVersion` if it does not exist."""
    versions = versions_of(kind)
    if version not in versions:
        raise UnsupportedVersion(
            f"version of {kind.__name__} must be between {versions.first} and {versions.last},"
            f" got {version}"
        )
    return version >= versions.flexible
