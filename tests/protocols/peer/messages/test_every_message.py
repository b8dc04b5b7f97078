"""What holds for every message between peers, in every version."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import MalformedRequest
from millstream.protocols.kafka.codec.message import decode, encode, encode_parts
from millstream.protocols.peer.apis import PEER_APIS
from millstream.protocols.peer.handshake import PROTOCOL, HandshakeRequest, HandshakeResponse
from tests.protocols.kafka.samples import sample

SEEDS = range(5)
CASES = [
    (kind, version)
    for api in PEER_APIS.values()
    for version in range(api.versions.first, api.versions.last + 1)
    for kind in (api.request, api.response)
] + [
    (kind, version)
    for version in range(PROTOCOL.first, PROTOCOL.last + 1)
    for kind in (HandshakeRequest, HandshakeResponse)
]
every_message = pytest.mark.parametrize(
    ("kind", "version"), [pytest.param(*case, id=f"{case[0].__name__}-{case[1]}") for case in CASES]
)


@every_message
def test_a_value_survives_its_bytes_whole_or_in_parts(kind, version):
    for seed in SEEDS:
        value = sample(kind, version, seed)
        data = encode(value, version)
        assert decode(kind, data, version) == value
        assert b"".join(encode_parts(value, version)) == data


@every_message
def test_every_cut_is_refused(kind, version):
    data = memoryview(encode(sample(kind, version, 0), version))
    for size in range(len(data)):
        with pytest.raises(MalformedRequest, match=r"\d"):
            decode(kind, data[:size], version)


@every_message
def test_trailing_bytes_are_refused(kind, version):
    data = encode(sample(kind, version, 0), version)
    for trailing in (b"\x00", b"\x01", b"\xff" * 9):
        with pytest.raises(MalformedRequest, match=f"there are {len(data) + len(trailing)} bytes"):
            decode(kind, data + trailing, version)


@every_message
def test_noise_is_refused_or_is_a_message(kind, version):
    rng = random.Random(version)
    data = bytearray(encode(sample(kind, version, 1), version))
    for _ in range(40):
        position = rng.randrange(len(data))
        kept, data[position] = data[position], rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        check(kind, bytes(data), version)
        data[position] = kept


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(CASES), st.binary(max_size=200))
def test_any_bytes_are_refused_or_are_a_message(case, data):
    kind, version = case
    check(kind, data, version)


def check(kind, data, version):
    try:
        value = decode(kind, data, version)
    except MalformedRequest:
        return
    again = encode(value, version)
    assert decode(kind, again, version) == value
