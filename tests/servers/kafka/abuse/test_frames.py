"""Malformed frames: the connection is closed, and nothing else happens."""

from __future__ import annotations

import random
import struct

import pytest

from millstream.protocols.kafka.apis import APIS
from tests.protocols.kafka.samples import sample
from tests.servers.kafka.client import frame

from .node import wait_until

every_api = pytest.mark.parametrize(
    "api", [pytest.param(api, id=api.name) for api in APIS.values()]
)

MAY_BE_SILENT = {"Produce", "Fetch", "JoinGroup", "SyncGroup"}
"""No answer is wanted with acks of 0; for the others a client may wait as long as it says."""


def versions(api):
    return range(api.versions.first, api.versions.last + 1)


def patience(api):
    return 0.1 if api.name in MAY_BE_SILENT else 10


def outcome(node, data, *, seconds=10):
    """Return the reaction to some bytes: "closed", "answered", or "nothing" in time."""
    with node.client(timeout=seconds) as client:
        client.socket.sendall(data)
        try:
            return "answered" if client.socket.recv(1) else "closed"
        except ConnectionError:
            return "closed"
        except TimeoutError:
            return "nothing"


def with_size(body):
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("size", [2**31 - 1, 100 * 1024 * 1024 + 1, 7, 1, 0, -1, -(2**31)])
def test_a_size_that_is_not_allowed_ends_the_connection_within_a_second(node, size):
    assert outcome(node, struct.pack(">i", size), seconds=1) == "closed"
    wait_until(lambda: f"frame size must be between 8 and 104857600, got {size}" in node.said())


@pytest.mark.parametrize(
    "greeting",
    [
        bytes.fromhex("16030100f8010000f40303") + bytes(200),
        bytes.fromhex("16030300f8010000f40303") + bytes(200),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /topics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"*1\r\n$4\r\nPING\r\n",
    ],
    ids=["tls-1.0", "tls-1.2", "http-get", "http-post", "http-2", "ssh", "redis"],
)
def test_another_protocol_is_refused_within_a_second_with_one_line(node, greeting):
    lines_before = len(node.said().splitlines())
    assert outcome(node, greeting, seconds=1) == "closed"
    wait_until(lambda: len(node.said().splitlines()) > lines_before)
    (line,) = node.said().splitlines()[lines_before:]
    assert "frame size must be" in line


def test_an_api_that_is_not_known_ends_the_connection(node):
    for key in (-1, 4, 6, 7, 99, 1000, 32767):
        assert outcome(node, with_size(struct.pack(">hhih", key, 0, 1, -1))) == "closed"


@pytest.mark.parametrize("version", [-1, 99, 32767])
def test_a_version_that_is_not_spoken_ends_the_connection(node, version):
    for api in APIS.values():
        if api.name != "ApiVersions":
            header = struct.pack(">hhih", api.key, version, 1, -1)
            assert outcome(node, with_size(header)) == "closed", api.name


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_a_version_of_api_versions_that_is_too_new_is_answered(node, version):
    with node.client() as client:
        client.socket.sendall(with_size(struct.pack(">hhih", 18, version, 7, -1) + b"\0" * 3))
        correlation, error = struct.unpack_from(">ih", client.receive_frame())
    assert (correlation, error) == (7, 35)


@every_api
def test_noise_after_a_sound_header_is_refused(node, api):
    chance = random.Random(api.name)
    for version in versions(api):
        header = struct.pack(">hhih", api.key, version, 1, -1)
        header += b"\0" if version >= api.versions.flexible else b""
        for size in (1, 3, 17, 200, 5000):
            noise = header + chance.randbytes(size)
            found = outcome(node, with_size(noise), seconds=patience(api))
            assert found != "nothing" or api.name in MAY_BE_SILENT, noise.hex()


@every_api
def test_every_cut_of_a_request_ends_the_connection(node, api):
    for version in versions(api):
        whole = frame(sample(api.request, version, 1), version, 1)[4:]
        for size in sorted({8, 9, 10, len(whole) // 2, len(whole) - 2, len(whole) - 1}):
            if 8 <= size < len(whole):
                assert outcome(node, with_size(whole[:size])) == "closed", whole[:size].hex()


@every_api
def test_a_bit_that_flipped_does_no_harm(node, api):
    chance = random.Random(api.name)
    for version in versions(api):
        whole = frame(sample(api.request, version, 2), version, 1)
        for _ in range(8):
            flipped = bytearray(whole)
            flipped[chance.randrange(12, len(flipped))] ^= 1 << chance.randrange(8)
            found = outcome(node, flipped, seconds=patience(api))
            assert found != "nothing" or api.name in MAY_BE_SILENT, flipped.hex()


@every_api
def test_sound_requests_with_absurd_values_are_answered(node, api):
    for version in versions(api):
        for seed in range(6):
            request = sample(api.request, version, f"absurd {seed}")
            found = outcome(node, frame(request, version, 1), seconds=patience(api))
            assert found == "answered" or api.name in MAY_BE_SILENT, request
