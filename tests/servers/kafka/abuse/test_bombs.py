"""Batches that decompress to a gigabyte: no codec may cost the node that memory."""

from __future__ import annotations

import concurrent.futures
import functools
import json
import struct
import urllib.error
import urllib.request
import zlib

import cramjam
import pytest
from crc32c import crc32c

from millstream.config.schema import BrokerConfig
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
)
from millstream.records.compression import Codec
from tests.servers.kafka.client import produce_request
from tests.servers.kafka.conftest import make_topic

from .node import MIB, serve_once

UNPACKED = 1024 * MIB
REFUSALS = {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.MESSAGE_TOO_LARGE,
}
NOW_MS = 1_700_000_000_000
SIZE_MAX = str(20 * MIB)

every_codec = pytest.mark.parametrize(
    "codec", [codec for codec in Codec if codec], ids=lambda codec: codec.name.lower()
)


@functools.cache
def packed(codec):
    """A record with a value of a gigabyte of zeros, or as much as the format allows for."""
    start = varint(UNPACKED) + b"\0\0\0" + varint(-1) + varint(UNPACKED - 20)
    zeros = bytes(16 * MIB)
    if codec == Codec.GZIP:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        head = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
        block = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)
        # The end is missing, and declares nothing: no one comes so far.
        return head + block * (UNPACKED // len(zeros)) + bytes(8)
    if codec == Codec.ZSTD:
        frame = bytes(cramjam.zstd.compress(start + zeros))
        return frame + bytes(cramjam.zstd.compress(zeros)) * (UNPACKED // len(zeros))
    if codec == Codec.LZ4:
        return bytes(cramjam.lz4.compress(start + bytes(UNPACKED // 8)))
    # Snappy's block begins with its decompressed size: four gigabytes less one.
    return b"\xff\xff\xff\xff\x0f" + start + bytes(1000)


def varint(number):
    coded = (number << 1) ^ (number >> 63)
    out = bytearray()
    while coded > 0x7F:
        out.append(coded & 0x7F | 0x80)
        coded >>= 7
    return bytes([*out, coded])


def bomb(codec):
    summed = struct.pack(">hiqqqhii", codec, 1, NOW_MS, NOW_MS + 1000, -1, -1, -1, 2)
    summed += packed(codec)
    return struct.pack(">qiibI", 0, len(summed) + 9, -1, 2, crc32c(summed)) + summed


def produced(client, topic, batch):
    (answer,) = client.call(produce_request(topic, batch), 9).responses
    return answer.partition_responses[0].error_code


@every_codec
def test_a_compacted_topic_refuses_a_bomb(node, codec):
    with node.client(timeout=60) as client:
        topic = make_topic(client, cleanup_policy="compact", max_message_bytes=SIZE_MAX)
        batch = bomb(codec)
        check_cost(node, lambda: produced(client, topic, batch), REFUSALS)


@every_codec
def test_looking_up_a_time_in_a_bomb_is_bounded(node, codec):
    with node.client(timeout=60) as client:
        topic = make_topic(client, max_message_bytes=SIZE_MAX)
        if produced(client, topic, bomb(codec)) != 0:
            return  # Rejected on arrival, which is as good.
        partition = ListOffsetsRequestPartition(partition_index=0, timestamp=NOW_MS + 500)
        wanted = ListOffsetsRequestTopic(name=topic, partitions=(partition,))

        def look_up():
            (found,) = client.call(ListOffsetsRequest(topics=(wanted,)), 7).topics
            return found.partitions[0].error_code

        check_cost(node, look_up, REFUSALS | {ErrorCode.NONE})


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD], ids=lambda c: c.name)
def test_twelve_http_reads_of_a_bomb_cost_the_budget_and_say_why_they_fail(node, codec):
    with node.client(timeout=60) as client:
        topic = make_topic(client, max_message_bytes=SIZE_MAX)
        assert produced(client, topic, bomb(codec)) == 0
    with concurrent.futures.ThreadPoolExecutor(12) as readers:
        before, peak = node.anonymous_bytes(), 0
        url = f"{node.http}/v1/topics/{topic}/records?from=0"
        reads = [readers.submit(get, url) for _ in range(12)]
        while not all(read.done() for read in reads):
            serve_once(node)
            peak = max(peak, node.anonymous_bytes())
    for read in reads:
        status, error = read.result()
        assert (status, error["code"]) == (500, "damaged_records")
        assert error["detail"] == {"from": 0, "to": 1}
    assert peak - before < BrokerConfig().decompression_bytes_max


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, None
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def check_cost(node, ask, codes):
    """Ask three times: each request gets one of the codes, and memory stays bounded."""
    serve_once(node)
    before = node.memory_bytes()
    for _ in range(3):
        assert ask() in codes
    assert node.memory_bytes() - before < 600 * MIB
