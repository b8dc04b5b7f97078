"""Small frames with large counts: a count is accepted only if enough bytes follow."""

from __future__ import annotations

import struct
import time

from millstream.protocols.kafka.apis import APIS
from millstream.protocols.kafka.codec.message import encode
from tests.protocols.kafka.samples import sample

from .node import MIB, serve_once
from .test_frames import outcome, with_size

INT32 = [
    struct.pack(">i", count) for count in (2**31 - 1, 2**30, 10_000_000, 100_000, -2, -(2**31))
]
VARINT = [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"]


def bombs():
    """Every position of a request that could be a count, with a count that is too large."""
    for api in APIS.values():
        for version in {api.versions.first, api.versions.last}:
            is_flexible = version >= api.versions.flexible
            header = struct.pack(">hhih", api.key, version, 1, -1) + b"\0" * is_flexible
            body = encode(sample(api.request, version, 3), version)
            for count in VARINT if is_flexible else INT32:
                for place in range(min(len(body), 24)):
                    yield header + body[:place] + count + body[place + len(count) :]


def test_no_count_costs_more_than_the_bytes_that_came(node):
    serve_once(node)
    before = node.memory_bytes()
    number = 0
    began = time.monotonic()
    for number, bomb in enumerate(bombs(), 1):
        assert outcome(node, with_size(bomb), seconds=5) in {"answered", "closed", "nothing"}
        if number % 100 == 0:
            assert node.memory_bytes() < before + 50 * MIB
    assert number > 500
    assert (time.monotonic() - began) / number < 0.05


def fetch_of(partitions):
    """A valid request of 16 bytes per partition, for an unknown topic."""
    body = struct.pack(">iiiib", -1, 100, 0, 1000, 0)
    body += struct.pack(">ih", 1, 7) + b"no-such" + struct.pack(">i", partitions)
    body += struct.pack(">iqi", 0, 0, 1000) * partitions
    return with_size(struct.pack(">hhih", 1, 4, 1, -1) + body)


def test_a_request_with_a_hundred_thousand_partitions_is_answered(node):
    with node.client(timeout=60) as client:
        client.socket.sendall(fetch_of(100_000))
        answer = client.receive_frame()
    start = 4 + 4 + 4 + 2 + 7
    assert struct.unpack_from(">i", answer, start) == (100_000,)
    assert struct.unpack_from(">ih", answer, start + 4) == (0, 3)


def test_a_request_with_a_million_partitions_is_refused_at_once(node):
    before = node.memory_bytes()
    assert outcome(node, fetch_of(1_000_000)) == "closed"
    serve_once(node)
    assert node.memory_bytes() - before < 100 * MIB
