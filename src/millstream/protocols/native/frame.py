"""Frames of the native protocol: a header of 44 bytes, and a payload.

     0       4         5       6          8            12
    +-------+---------+-------+----------+------------+
    | LANC  | version | flags | reserved | header crc |
    +-------+---------+-------+----------+------------+
     12         20            28             32               36            40         44
    +----------+--------------+--------------+----------------+-------------+----------+----- - -
    | batch id | timestamp ns | record count | payload length | payload crc | topic id | payload
    +----------+--------------+--------------+----------------+-------------+----------+----- - -

Numbers are little-endian. The header crc is that of bytes 0 to 7, the payload crc that of the
payload as it was sent; it is 0 without a payload. In control frames the batch id is the code of the
operation. This is version 1; no other one is spoken.

The crc is CRC32C by the description of the protocol, and CRC-32, as in zlib, by the published
client in Rust. Both are understood: the header crc shows which one a client uses, and it is
answered in the same way.
"""

from __future__ import annotations

import enum
import struct
import zlib
from typing import NamedTuple

from crc32c import crc32c

from millstream.errors import MalformedRequest
from millstream.records.batch import Bytes

HEADER_SIZE = 44
MAGIC = b"LANC"
VERSION = 1
FRAME_SIZE_MAX = 16 * 1024 * 1024
"""Header and payload. Clients accept no larger frames."""

_PREFIX = struct.Struct("<4sBBHI")
"""What the header crc covers, and the crc."""
_HEADER = struct.Struct("<4sBBHIQQIIII")
_CHECKED_SIZE = 8
_PAYLOAD_LENGTH = struct.Struct("<I")
_PAYLOAD_LENGTH_AT = 32


class Checksum(enum.Enum):
    """How a client checks frames."""

    CRC32C = "crc32c"
    CRC32 = "crc32"

    def of(self, data: Bytes, start: int = 0) -> int:
        """Return the checksum of data, which continues that of what was before it."""
        if self is Checksum.CRC32C:
            value: int = crc32c(data, start)
            return value
        return zlib.crc32(data, start)


class Flag(enum.IntFlag):
    """Bits of the flags of a frame."""

    COMPRESSED = 0x01
    ENCRYPTED = 0x02
    """Reserved: nothing encrypts payloads."""
    BATCH = 0x04
    ACK = 0x08
    BACKPRESSURE = 0x10
    KEEPALIVE = 0x20
    CONTROL = 0x40
    UNUSED = 0x80
    """Must be 0."""


class NativeFrameKind(enum.Enum):
    """What a frame is."""

    CONTROL = "control"
    KEEPALIVE = "keepalive"
    ACK = "ack"
    BACKPRESSURE = "backpressure"
    INGEST = "ingest"
    UNKNOWN = "unknown"


_KINDS = (
    (Flag.CONTROL, NativeFrameKind.CONTROL),
    (Flag.KEEPALIVE, NativeFrameKind.KEEPALIVE),
    (Flag.ACK, NativeFrameKind.ACK),
    (Flag.BACKPRESSURE, NativeFrameKind.BACKPRESSURE),
    (Flag.BATCH, NativeFrameKind.INGEST),
)
"""The first flag that is set decides."""


class NativeFrameHeader(NamedTuple):
    """The header of a frame, without what is the same in all."""

    flags: int
    batch_id: int = 0
    timestamp_ns: int = 0
    record_count: int = 0
    payload_length: int = 0
    payload_crc: int = 0
    topic_id: int = 0

    @property
    def kind(self) -> NativeFrameKind:
        for flag, kind in _KINDS:
            if self.flags & flag:
                return kind
        return NativeFrameKind.INGEST if self.payload_length else NativeFrameKind.UNKNOWN

    @property
    def opcode(self) -> int:
        """The code of the operation of a control frame."""
        return self.batch_id & 0xFF


def payload_length(view: Bytes, position: int, *, frame_size_max: int = FRAME_SIZE_MAX) -> int:
    """Return the length of the payload of the frame at a position; check the header's first part.

    Raises `MalformedRequest` if that is not the header of a frame of at most `frame_size_max`
    bytes. Only the checks that need no payload are done, so that nothing is kept of noise.
    """
    magic, version, flags, reserved, crc = _PREFIX.unpack_from(view, position)
    if magic != MAGIC:
        raise MalformedRequest(f"frame must begin with {MAGIC!r}, got {magic!r}")
    if version != VERSION:
        raise MalformedRequest(f"version of a frame must be {VERSION}, got {version}")
    checked = memoryview(view)[position : position + _CHECKED_SIZE]
    if all(crc != checksum.of(checked) for checksum in Checksum):
        expected = Checksum.CRC32C.of(checked)
        raise MalformedRequest(f"header crc must be {expected:08x}, got {crc:08x}")
    if flags & Flag.UNUSED or reserved:
        raise MalformedRequest(
            f"flag 0x80 and the reserved bytes must be 0, got flags {flags:#04x} and {reserved:#x}"
        )
    length: int = _PAYLOAD_LENGTH.unpack_from(view, position + _PAYLOAD_LENGTH_AT)[0]
    if HEADER_SIZE + length > frame_size_max:
        raise MalformedRequest(
            f"frame must have at most {frame_size_max} bytes, got {HEADER_SIZE + length}"
        )
    return length


def announced_length(view: Bytes, position: int) -> int:
    """Return the length of the payload that a header announces, unchecked."""
    length: int = _PAYLOAD_LENGTH.unpack_from(view, position + _PAYLOAD_LENGTH_AT)[0]
    return length


def decode_header(view: Bytes) -> NativeFrameHeader:
    """Decode the header of a frame that `payload_length` has checked."""
    _, _, flags, _, _, *values = _HEADER.unpack_from(view)
    return NativeFrameHeader(flags, *values)


def checksum_of(view: Bytes) -> Checksum:
    """Return how the header of a frame, which `payload_length` has checked, was checked."""
    crc = _PREFIX.unpack_from(view)[-1]
    checked = memoryview(view)[:_CHECKED_SIZE]
    return Checksum.CRC32C if crc == Checksum.CRC32C.of(checked) else Checksum.CRC32


def check_payload(header: NativeFrameHeader, payload: Bytes, checksum: Checksum) -> None:
    """Raise `MalformedRequest` if a payload is not the one that its header describes."""
    expected = checksum.of(payload) if payload else 0
    if header.payload_crc != expected:
        raise MalformedRequest(
            f"payload crc must be {expected:08x}, got {header.payload_crc:08x} for"
            f" {len(payload)} bytes"
        )


class Frame(NamedTuple):
    """A frame to be sent: what its header says beyond length and checksums, and its payload."""

    header: NativeFrameHeader
    payload: tuple[Bytes, ...] = ()

    def encode(self, checksum: Checksum = Checksum.CRC32C) -> list[Bytes]:
        """Encode the frame; the parts of its payload are not copied."""
        crc = length = 0
        for part in self.payload:
            crc = checksum.of(part, crc)
            length += len(part)
        header = self.header._replace(payload_length=length, payload_crc=crc if length else 0)
        return [encode_header(header, checksum), *self.payload]

    def to_bytes(self, checksum: Checksum = Checksum.CRC32C) -> bytes:
        """Encode the frame, for clients."""
        return b"".join(self.encode(checksum))


def encode_header(header: NativeFrameHeader, checksum: Checksum = Checksum.CRC32C) -> bytes:
    """Encode a header as it is, with its checksum."""
    checked = _PREFIX.pack(MAGIC, VERSION, header.flags, 0, 0)[:_CHECKED_SIZE]
    crc = checksum.of(checked)
    return _HEADER.pack(MAGIC, VERSION, header.flags, 0, crc, *header[1:])


def control_frame(opcode: int, *payload: Bytes) -> Frame:
    """Return a control frame."""
    return Frame(NativeFrameHeader(Flag.CONTROL, opcode), payload)


def ack_frame(batch_id: int) -> Frame:
    """Return the acknowledgement of records, or of an operation that answers with one."""
    return Frame(NativeFrameHeader(Flag.ACK, batch_id))


def backpressure_frame(batch_id: int) -> Frame:
    """Return the answer to records that were not accepted now, and may be sent again later."""
    return Frame(NativeFrameHeader(Flag.BACKPRESSURE, batch_id))


def keepalive_frame() -> Frame:
    """Return a keepalive."""
    return Frame(NativeFrameHeader(Flag.KEEPALIVE))


def ingest_frame(
    batch_id: int, payload: Bytes, *, record_count: int, topic_id: int = 0, timestamp_ns: int = 0
) -> Frame:
    """Return a frame with records to append."""
    header = NativeFrameHeader(
        Flag.BATCH, batch_id, timestamp_ns, record_count=record_count, topic_id=topic_id
    )
    return Frame(header, (payload,))
