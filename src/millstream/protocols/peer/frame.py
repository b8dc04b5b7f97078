"""Frames between peers, and their header.

     0      4      5       6     8         10               14         18    26      28          29
    +------+------+-------+-----+---------+----------------+----------+-----+-------+-----------+
    | size | kind | flags | api | version | correlation id | deadline | HLC | error | size of t.|
    +------+------+-------+-----+---------+----------------+----------+-----+-------+-----------+
    | traceparent: ASCII, or nothing | body: a message, the text of an error, or a number         |
    +--------------------------------+------------------------------------------------------------+

Numbers are big endian. `size` counts the bytes behind it. The first frame in each direction is the
handshake, which has no header (`handshake.py`). Correlation ids are chosen by the side that
connected, which sends all requests; responses may come in any order.

    REQUEST     a request; `deadline` is the time left for it, in milliseconds
    RESPONSE    a response, or one part of a stream of them; the flag LAST marks the last frame of
                a request. With an error code the body is its text. A stream ends with a frame that
                has the flag, and no body.
    CANCEL      the caller does not need the response any more; the last frame comes nonetheless
    CREDIT      the caller has read this many bytes of a stream: so many more may be sent
    GOING_AWAY  the server stops: start no more requests on this connection
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from millstream.errors import MalformedRequest
from millstream.protocols.kafka.codec.primitives import Buffer

_HEADER = struct.Struct(">bBhhiiqhB")
_SIZE = struct.Struct(">i")
_CREDIT = struct.Struct(">i")

SIZE_SIZE: Final = _SIZE.size
FRAME_HEADER_SIZE: Final = _HEADER.size
"""Bytes of a header without a traceparent, after the size."""

DEADLINE_MS_MAX: Final = 2**31 - 1
STREAM_WINDOW_BYTES: Final = 1024 * 1024
"""Bytes of a stream that may be on their way before the caller has read any of them."""

_LAST: Final = 1
_NUMBERS_MAX: Final = 2**31 - 1


class FrameKind(enum.IntEnum):
    """What a frame is."""

    REQUEST = 1
    RESPONSE = 2
    CANCEL = 3
    CREDIT = 4
    GOING_AWAY = 5


_KINDS = {int(kind): kind for kind in FrameKind}


class FrameHeader(NamedTuple):
    """The header of a frame."""

    kind: FrameKind
    correlation_id: int
    api_key: int = 0
    version: int = 0
    deadline_ms: int = 0
    hlc: int = 0
    error_code: int = 0
    is_last: bool = False
    traceparent: str | None = None


def decode_frame(frame: memoryview) -> tuple[FrameHeader, memoryview]:
    """Decode the header of a frame without its size; return it and the body, a view."""
    end = len(frame)
    if end < _HEADER.size:
        raise MalformedRequest(f"frame has {end} bytes, its header at least {_HEADER.size}")
    number, flags, api_key, version, correlation_id, deadline_ms, hlc, error_code, trace_size = (
        _HEADER.unpack_from(frame)
    )
    kind = _KINDS.get(number)
    if kind is None:
        raise MalformedRequest(f"kind of a frame must be between 1 and 5, got {number}")
    if flags & ~_LAST:
        raise MalformedRequest(f"flags of a frame must be 0 or 1, got {flags}")
    if deadline_ms < 0:
        raise MalformedRequest(f"deadline must be at least 0 ms, got {deadline_ms}")
    if hlc < 0:
        raise MalformedRequest(f"HLC must be at least 0, got {hlc}")
    start = _HEADER.size + trace_size
    if start > end:
        raise MalformedRequest(
            f"traceparent announces {trace_size} bytes, {end - _HEADER.size} are left"
        )
    traceparent = None
    if trace_size:
        try:
            traceparent = str(frame[_HEADER.size : start], "ascii")
        except UnicodeDecodeError:
            raise MalformedRequest("traceparent is not ASCII") from None
    header = FrameHeader(
        kind,
        correlation_id,
        api_key,
        version,
        deadline_ms,
        hlc,
        error_code,
        flags == _LAST,
        traceparent,
    )
    return header, frame[start:]


def encode_frame(header: FrameHeader, body: Sequence[Buffer] = ()) -> list[Buffer]:
    """Encode a frame in parts: the buffers of `body` are not copied, except for the first."""
    trace = b"" if header.traceparent is None else header.traceparent.encode("ascii")
    if len(trace) > 0xFF:
        raise ValueError(f"traceparent must have at most 255 bytes, got {len(trace)}")
    first, *others = body or (b"",)
    size = _HEADER.size + len(trace) + sum(map(len, body))
    if size > _NUMBERS_MAX:
        raise ValueError(f"frame must have at most {_NUMBERS_MAX} bytes, got {size}")
    head = _HEADER.pack(
        header.kind,
        _LAST if header.is_last else 0,
        header.api_key,
        header.version,
        header.correlation_id,
        header.deadline_ms,
        header.hlc,
        header.error_code,
        len(trace),
    )
    return [b"".join((_SIZE.pack(size), head, trace, first)), *others]


def encode_credit(correlation_id: int, size: int) -> list[Buffer]:
    """Encode the frame that allows `size` more bytes of a stream."""
    header = FrameHeader(FrameKind.CREDIT, correlation_id)
    return encode_frame(header, (_CREDIT.pack(size),))


def decode_credit(body: memoryview) -> int:
    """Return the bytes that a credit allows."""
    if len(body) != _CREDIT.size:
        raise MalformedRequest(f"credit must have {_CREDIT.size} bytes, got {len(body)}")
    size: int = _CREDIT.unpack(body)[0]
    if size <= 0:
        raise MalformedRequest(f"credit must be at least 1 byte, got {size}")
    return size
