"""Frames of the native protocol, byte for byte."""

from __future__ import annotations

import zlib

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import MalformedRequest
from millstream.protocols.native.frame import (
    FRAME_SIZE_MAX,
    HEADER_SIZE,
    Checksum,
    Flag,
    Frame,
    NativeFrameHeader,
    NativeFrameKind,
    ack_frame,
    backpressure_frame,
    check_payload,
    checksum_of,
    control_frame,
    decode_header,
    encode_header,
    ingest_frame,
    keepalive_frame,
    payload_length,
)

CRC32C_VECTORS = {
    b"": 0x00000000,
    b"a": 0xC1D04330,
    b"hello": 0x9A71BB4C,
    b"123456789": 0xE3069283,
    b"test": 0x86A072C0,
}
HEADER_CRCS = {0x04: 0xDC38D405, 0x08: 0x7AB74EDA, 0x20: 0xA3A28B0B, 0x40: 0x8583F0C6}
"""CRC32C of the first eight bytes, by flags."""

GOLDEN = {
    "keepalive": (
        keepalive_frame(),
        "4c414e43 01 20 0000 0b8ba2a3" + "00" * 32,
    ),
    "ack": (
        ack_frame(0x1122334455667788),
        "4c414e43 01 08 0000 da4eb77a 8877665544332211" + "00" * 24,
    ),
    "backpressure": (
        backpressure_frame(0),
        "4c414e43 01 10 0000 " + crc32c(b"LANC\1\x10\0\0").to_bytes(4, "little").hex() + "00" * 32,
    ),
    "ingest": (
        ingest_frame(7, b"123456789", record_count=3, topic_id=2, timestamp_ns=0x0102),
        "4c414e43 01 04 0000 05d438dc 0700000000000000 0201000000000000 03000000 09000000"
        " 839206e3 02000000 313233343536373839",
    ),
    "control": (
        control_frame(0x10, b"te", b"st"),
        "4c414e43 01 40 0000 c6f08385 1000000000000000 0000000000000000 00000000 04000000"
        " c072a086 00000000 74657374",
    ),
}

SENT_BY_THE_PUBLISHED_CLIENT = bytes.fromhex("4c414e43 01 20 0000 061e9c53" + "00" * 32)
"""A keepalive of `lnc-client` 0.2.8, recorded: its crc is CRC-32."""

HEADERS = st.builds(
    NativeFrameHeader,
    flags=st.integers(0, 0x7F),
    batch_id=st.integers(0, 2**64 - 1),
    timestamp_ns=st.integers(0, 2**64 - 1),
    record_count=st.integers(0, 2**32 - 1),
    topic_id=st.integers(0, 2**32 - 1),
)


def test_the_checksums_are_those_of_the_description():
    assert {data: Checksum.CRC32C.of(data) for data in CRC32C_VECTORS} == CRC32C_VECTORS
    for flags, crc in HEADER_CRCS.items():
        assert encode_header(NativeFrameHeader(flags))[8:12] == crc.to_bytes(4, "little")
    assert Checksum.CRC32.of(b"123456789") == zlib.crc32(b"123456789") == 0xCBF43926


@pytest.mark.parametrize("name", GOLDEN)
def test_frames_have_the_published_bytes(name):
    frame, expected = GOLDEN[name]
    assert frame.to_bytes() == bytes.fromhex(expected)


def test_a_frame_of_the_published_client_is_understood_and_answered_with_its_checksum():
    assert payload_length(SENT_BY_THE_PUBLISHED_CLIENT, 0) == 0
    checksum = checksum_of(SENT_BY_THE_PUBLISHED_CLIENT)
    assert checksum is Checksum.CRC32
    assert keepalive_frame().to_bytes(checksum) == SENT_BY_THE_PUBLISHED_CLIENT


@given(HEADERS, st.lists(st.binary(max_size=40), max_size=3), st.sampled_from(Checksum))
def test_what_was_encoded_is_decoded(header, payload, checksum):
    sent = Frame(header, tuple(payload)).to_bytes(checksum)
    body = b"".join(payload)
    assert payload_length(b"?" + sent, 1) == len(body)
    assert checksum_of(sent) is checksum
    decoded = decode_header(sent)
    assert decoded == header._replace(
        payload_length=len(body), payload_crc=checksum.of(body) if body else 0
    )
    check_payload(decoded, body, checksum)


@pytest.mark.parametrize("checksum", Checksum)
def test_every_flipped_bit_before_the_batch_id_is_refused(checksum):
    sent = ack_frame(1).to_bytes(checksum)
    for bit in range(12 * 8):
        damaged = bytearray(sent)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(MalformedRequest):
            payload_length(damaged, 0)


@pytest.mark.parametrize("checksum", Checksum)
def test_every_flipped_bit_of_a_payload_and_its_crc_is_refused(checksum):
    sent = ingest_frame(1, b"some bytes", record_count=1).to_bytes(checksum)
    for bit in [*range(36 * 8, 40 * 8), *range(HEADER_SIZE * 8, len(sent) * 8)]:
        damaged = bytearray(sent)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(MalformedRequest, match="payload crc must be"):
            check_payload(decode_header(damaged), damaged[HEADER_SIZE:], checksum)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"HTTP" + bytes(40), "frame must begin with b'LANC', got b'HTTP'"),
        (b"LANC\2" + bytes(39), "version of a frame must be 1, got 2"),
        (encode_header(NativeFrameHeader(0x84)), "flag 0x80 and the reserved bytes must be 0"),
        (
            encode_header(NativeFrameHeader(4, payload_length=FRAME_SIZE_MAX - HEADER_SIZE + 1)),
            f"frame must have at most {FRAME_SIZE_MAX} bytes, got {FRAME_SIZE_MAX + 1}",
        ),
    ],
)
def test_what_is_no_frame_is_refused_by_its_header(header, words):
    with pytest.raises(MalformedRequest, match=words):
        payload_length(header, 0)


def test_reserved_bytes_with_a_correct_checksum_are_refused():
    header = bytearray(encode_header(NativeFrameHeader(4)))
    header[6] = 1
    header[8:12] = crc32c(bytes(header[:8])).to_bytes(4, "little")
    with pytest.raises(MalformedRequest, match="reserved"):
        payload_length(header, 0)


@pytest.mark.parametrize(
    ("flags", "length", "kind"),
    [
        (0xFF & ~Flag.UNUSED, 0, NativeFrameKind.CONTROL),
        (Flag.KEEPALIVE | Flag.ACK, 0, NativeFrameKind.KEEPALIVE),
        (Flag.ACK | Flag.BACKPRESSURE, 0, NativeFrameKind.ACK),
        (Flag.BACKPRESSURE | Flag.BATCH, 1, NativeFrameKind.BACKPRESSURE),
        (Flag.BATCH, 0, NativeFrameKind.INGEST),
        (0, 1, NativeFrameKind.INGEST),
        (0, 0, NativeFrameKind.UNKNOWN),
    ],
)
def test_the_first_flag_that_fits_says_what_a_frame_is(flags, length, kind):
    assert NativeFrameHeader(flags, payload_length=length).kind is kind
