"""Headers of requests and responses."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as KioHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as KioHeaderV2
from kio.serial import entity_writer
from kio.static.primitive import i16, i32

from millstream.errors import MalformedRequest
from millstream.protocols.kafka.header import (
    RequestHeader,
    decode_request_header,
    encode_response_header,
)

HEARTBEAT, API_VERSIONS, SASL_HANDSHAKE = 12, 18, 17

CLASSIC = bytes.fromhex("000c 0003 00000007 0002 6d65")  # Heartbeat 3, from "me"
FLEXIBLE = bytes.fromhex("000c 0004 00000007 0002 6d65 00")  # Heartbeat 4, no tagged fields
NULL = bytes.fromhex("000c 0003 ffffffff ffff")
TAGGED = bytes.fromhex("000c 0004 00000007 0002 6d65 02 00 03 616263 7f 00")

GOLDEN = {
    "classic": (CLASSIC, RequestHeader(HEARTBEAT, 3, 7, "me")),
    "flexible": (FLEXIBLE, RequestHeader(HEARTBEAT, 4, 7, "me")),
    "without a client id": (NULL, RequestHeader(HEARTBEAT, 3, -1, None)),
    "with tagged fields that nobody knows": (TAGGED, RequestHeader(HEARTBEAT, 4, 7, "me")),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_header_comes_off_and_the_body_remains(name):
    data, header = GOLDEN[name]
    for body in (b"", b"body"):
        assert decode_request_header(memoryview(data + body)) == (header, body)


@pytest.mark.parametrize("name", GOLDEN)
def test_every_cut_of_a_header_is_refused(name):
    data, _ = GOLDEN[name]
    for size in range(len(data)):
        with pytest.raises(MalformedRequest, match=r"\d"):
            decode_request_header(memoryview(data)[:size])


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ("000c 0003 00000007 fffe", "client id announces -2 bytes, minimum is 0"),
        ("000c 0003 00000007 7fff 6d65", "client id announces 32767 bytes, 2 are left"),
        ("000c 0003 00000007 0001 ff", "not UTF-8"),
        ("000c 0004 00000007 0000 ffffffff0f", "4294967295 items of at least 2 bytes, 0 are left"),
        ("000c 0004 00000007 0000 01 00 05", "tagged field 0 announces 5 bytes, 0 are left"),
    ],
)
def test_a_bad_header_is_refused(data, error):
    with pytest.raises(MalformedRequest, match=error):
        decode_request_header(memoryview(bytes.fromhex(data)))


@pytest.mark.parametrize(
    ("key", "version"),
    [(0, 2), (API_VERSIONS, 5), (API_VERSIONS, 32767), (4, 0), (-1, 0), (HEARTBEAT, -1)],
)
@pytest.mark.parametrize("rest", ["", "00", "7fff", "0002 6d65 00", "ffffffffff"])
def test_what_is_not_spoken_here_is_still_named(key, version, rest):
    identity = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True)
    data = identity + (9).to_bytes(4, "big") + bytes.fromhex(rest)
    header, body = decode_request_header(memoryview(data))
    assert header == RequestHeader(key, version, 9, None)
    assert body == bytes.fromhex(rest)


@given(st.text(max_size=20) | st.none(), st.integers(-(2**31), 2**31 - 1), st.booleans())
def test_headers_that_kio_writes_are_read(client_id, correlation_id, is_flexible):
    version = 4 if is_flexible else 3
    kind = KioHeaderV2 if is_flexible else KioHeaderV1
    written = io.BytesIO()
    entity_writer(kind)(
        written,
        kind(
            request_api_key=i16(HEARTBEAT),
            request_api_version=i16(version),
            correlation_id=i32(correlation_id),
            client_id=client_id,
        ),
    )
    header, body = decode_request_header(memoryview(written.getvalue()))
    assert header == RequestHeader(HEARTBEAT, version, correlation_id, client_id)
    assert not body


@pytest.mark.parametrize(
    ("key", "version", "golden"),
    [
        (HEARTBEAT, 3, "00000007"),
        (HEARTBEAT, 4, "00000007 00"),
        (SASL_HANDSHAKE, 1, "00000007"),  # Never flexible.
        (API_VERSIONS, 3, "00000007"),  # Flexible, but its client cannot know that yet.
        (API_VERSIONS, 99, "00000007"),
        (999, 0, "00000007"),
    ],
)
def test_a_response_header_fits_its_version(key, version, golden):
    assert encode_response_header(key, version, 7) == bytes.fromhex(golden)
