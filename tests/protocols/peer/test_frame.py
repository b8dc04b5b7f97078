"""Frames between peers: their header, byte by byte, and what is refused."""

from __future__ import annotations

import random

import pytest

from millstream.errors import MalformedRequest
from millstream.protocols.peer.frame import (
    FRAME_HEADER_SIZE,
    FrameHeader,
    FrameKind,
    decode_credit,
    decode_frame,
    encode_credit,
    encode_frame,
)

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
REQUEST = FrameHeader(FrameKind.REQUEST, 9, 2, 1, 1500, 0x1122334455667788)
RESPONSE = FrameHeader(
    FrameKind.RESPONSE, 9, 2, 1, hlc=5, error_code=-1, is_last=True, traceparent="00-a"
)

GOLDEN = {
    "a request": (
        REQUEST,
        (b"body",),
        "0000001d"  # 25 bytes of header, 4 of body
        "01 00 0002 0001 00000009 000005dc 1122334455667788 0000 00"
        "626f6479",
    ),
    "the last response, an error, with a trace": (
        RESPONSE,
        (b"no",),
        "0000001f02 01 0002 0001 00000009 00000000 0000000000000005 ffff 0430302d616e6f",
    ),
    "nothing but a header": (
        FrameHeader(FrameKind.GOING_AWAY, 0),
        (),
        "00000019 05 00 0000 0000 00000000 00000000 0000000000000000 0000 00",
    ),
}


def joined(header, body=()):
    return b"".join(encode_frame(header, body))


@pytest.mark.parametrize("name", GOLDEN)
def test_frames_match_the_bytes_worked_out_by_hand(name):
    header, body, golden = GOLDEN[name]
    data = bytes.fromhex(golden)
    assert joined(header, body) == data
    decoded, rest = decode_frame(memoryview(data)[4:])
    assert decoded == header
    assert bytes(rest) == b"".join(body)


def test_large_parts_of_a_body_are_not_copied():
    large = memoryview(bytes(100_000))
    parts = encode_frame(REQUEST, (b"small", large))
    assert parts[1] is large
    assert len(parts) == 2


def test_every_cut_of_a_header_is_refused():
    header = REQUEST._replace(traceparent=TRACE)
    data = memoryview(joined(header))[4:]
    assert decode_frame(data)[0] == header
    for size in range(len(data)):
        with pytest.raises(MalformedRequest, match=r"\d"):
            decode_frame(data[:size])


@pytest.mark.parametrize(
    ("position", "byte", "message"),
    [
        (0, 0, "kind of a frame must be between 1 and 5, got 0"),
        (0, 6, "kind of a frame must be between 1 and 5, got 6"),
        (1, 2, "flags of a frame must be 0 or 1, got 2"),
        (10, 0x80, "deadline must be at least 0 ms"),
        (14, 0x80, "HLC must be at least 0"),
        (24, 200, "traceparent announces 200 bytes, 4 are left"),
    ],
)
def test_a_header_with_a_value_that_is_not_allowed_is_refused(position, byte, message):
    data = bytearray(joined(REQUEST, (b"body",))[4:])
    data[position] = byte
    with pytest.raises(MalformedRequest, match=message):
        decode_frame(memoryview(data))


def test_a_trace_that_is_not_ascii_is_refused():
    data = bytearray(joined(RESPONSE)[4:])
    data[FRAME_HEADER_SIZE] = 0xFF
    with pytest.raises(MalformedRequest, match="traceparent is not ASCII"):
        decode_frame(memoryview(data))


def test_noise_is_refused_or_is_a_frame():
    rng = random.Random(7)
    for _ in range(2000):
        data = rng.randbytes(rng.randrange(60))
        try:
            header, body = decode_frame(memoryview(data))
        except MalformedRequest:
            continue
        assert joined(header, (body,))[4:] == data


def test_a_credit_says_how_much_more_may_be_sent():
    header, body = decode_frame(memoryview(b"".join(encode_credit(3, 70_000)))[4:])
    assert (header.kind, header.correlation_id) == (FrameKind.CREDIT, 3)
    assert decode_credit(body) == 70_000


@pytest.mark.parametrize("body", [b"", b"\0\0\0", b"\0\0\0\0", b"\xff\0\0\0", b"\0\0\0\1\0"])
def test_a_credit_of_nothing_or_of_another_size_is_refused(body):
    with pytest.raises(MalformedRequest, match="credit must"):
        decode_credit(memoryview(body))


def test_a_trace_that_is_too_long_cannot_be_sent():
    with pytest.raises(ValueError, match="at most 255 bytes, got 256"):
        encode_frame(REQUEST._replace(traceparent="x" * 256))
