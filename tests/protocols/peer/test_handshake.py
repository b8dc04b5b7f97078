"""The handshake: its bytes, and versions of two releases."""

from __future__ import annotations

import uuid

import pytest

from millstream.errors import MalformedRequest, UnsupportedVersion
from millstream.protocols.peer.apis import ANNOUNCED
from millstream.protocols.peer.handshake import (
    HANDSHAKE_SIZE_MAX,
    HandshakeApi,
    HandshakeRequest,
    HandshakeResponse,
    Purpose,
    common_versions,
    decode_handshake_request,
    decode_handshake_response,
    encode_handshake,
)

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
REQUEST = HandshakeRequest(
    cluster_id="c",
    node_id=2,
    incarnation=ID,
    target_node_id=1,
    software_version="0.1",
    purpose=Purpose.FORWARDING,
    hlc=5,
    apis=(HandshakeApi(key=1, first=0, last=3),),
)
REQUEST_HEX = (
    "00000036"
    "4d494c4c 0001"  # MILL, version 1
    "02 63 00000002 00112233445566778899aabbccddeeff 00000001"
    "04 302e31 02 0000000000000005"
    "02 0001 0000 0003 00"
    "00"
)
REFUSAL_HEX = (
    "0000002b"
    "4d494c4c 0001"
    "0068 03 6e6f"  # WRONG_CLUSTER, "no"
    "01 ffffffff 00000000000000000000000000000000 01 0000000000000000 01"
    "00"
)


def test_requests_match_the_bytes_worked_out_by_hand():
    data = bytes.fromhex(REQUEST_HEX)
    assert encode_handshake(REQUEST) == data
    assert decode_handshake_request(memoryview(data)[4:]) == REQUEST


def test_a_refusal_names_nothing_of_the_cluster():
    refusal = HandshakeResponse(error_code=104, error_message="no")
    data = bytes.fromhex(REFUSAL_HEX)
    assert encode_handshake(refusal) == data
    assert decode_handshake_response(memoryview(data)[4:]) == refusal


def test_every_cut_is_refused():
    data = memoryview(encode_handshake(REQUEST))[4:]
    for size in range(len(data)):
        with pytest.raises(MalformedRequest):
            decode_handshake_request(data[:size])


def test_other_magic_is_refused():
    with pytest.raises(MalformedRequest, match="must start with b'MILL', got b'GET '"):
        decode_handshake_request(memoryview(b"GET / HTTP/1.1\r\n\r\n"))


@pytest.mark.parametrize("version", [0, 2, 32767, -1])
def test_a_protocol_version_of_another_release_is_told_apart(version):
    data = b"MILL" + version.to_bytes(2, "big", signed=True) + b"whatever is in it"
    with pytest.raises(UnsupportedVersion, match=f"must be between 1 and 1, got {version}"):
        decode_handshake_request(memoryview(data))


def test_what_a_node_announces_fits_into_a_handshake():
    response = HandshakeResponse(
        error_message="x" * 2000, cluster_id="c" * 200, software_version="v" * 100, apis=ANNOUNCED
    )
    assert len(encode_handshake(response)) < HANDSHAKE_SIZE_MAX / 2


@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [
        ((0, 3), (0, 3), {1: 3}),
        ((0, 3), (1, 2), {1: 2}),
        ((2, 3), (0, 2), {1: 2}),
        ((2, 3), (0, 1), {}),
        ((0, 1), (2, 3), {}),
    ],
)
def test_two_releases_use_the_newest_version_that_both_know(ours, theirs, common):
    known = [HandshakeApi(key=1, first=ours[0], last=ours[1])]
    announced = [
        HandshakeApi(key=1, first=theirs[0], last=theirs[1]),
        HandshakeApi(key=2, first=0, last=0),
    ]
    assert common_versions(known, announced) == common
