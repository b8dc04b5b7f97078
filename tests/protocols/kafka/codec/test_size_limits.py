"""Sizes and counts that promise more than there is: refused before anything is built."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from millstream.errors import MalformedRequest
from millstream.protocols.kafka.codec.malformed import ITEM_COUNT_MAX
from millstream.protocols.kafka.codec.message import decode, encode, versions_of
from millstream.protocols.kafka.messages.fetch import FetchRequest
from millstream.protocols.kafka.messages.groups import JoinGroupRequest
from millstream.protocols.kafka.messages.metadata import MetadataRequest
from millstream.protocols.kafka.messages.offsets import OffsetFetchRequest
from millstream.protocols.kafka.messages.produce import ProduceRequest
from millstream.protocols.kafka.messages.transactions import ListTransactionsRequest
from tests.protocols.kafka.samples import CASES, sample

SECONDS_MAX = 0.010
SIZE_MAX = 1024 * 1024
FRAME_SIZE = 100 * 1024 * 1024

# What stands at the start of a large frame; the rest of it is zeros.
BOMBS = {
    "a count of all that 32 bits can say": (MetadataRequest, 1, "7fffffff"),
    "a count below null": (MetadataRequest, 1, "80000000"),
    "a count that would fill the frame": (MetadataRequest, 1, "03000000"),
    "a flexible count of 32 bits": (MetadataRequest, 9, "ffffffff0f"),
    "a count of numbers": (ListTransactionsRequest, 0, "01 8094ebdc03"),
    "a count of numbers that would fill the frame": (ListTransactionsRequest, 0, "01 80a8d507"),
    "a million partitions of a topic": (
        OffsetFetchRequest,
        1,
        "0001 67 00000001 0001 74 000f4240",
    ),
    "a count in a count": (
        ProduceRequest,
        3,
        "ffff 0001 00000001 00000001 0001 74 02000000 00000000",
    ),
    "records larger than the frame": (
        ProduceRequest,
        9,
        "00 0001 00000001 02 02 74 02 00000000 ffffffff0f",
    ),
    "bytes larger than the frame": (
        JoinGroupRequest,
        0,
        "0000 00000001 0000 0000 00000001 0000 7fffffff",
    ),
    "tags without end": (MetadataRequest, 9, "00 00 00 00 ffffffff0f"),
    "tags that would fill the frame": (MetadataRequest, 9, "00 00 00 00 80808010"),
    "a tag larger than the frame": (MetadataRequest, 9, "00 00 00 00 01 00 ffffffff0f"),
    "known tags without end": (
        FetchRequest,
        12,
        "ffffffff 00000000 00000000 00000000 00 00000000 00000000 01 01 01 80808010",
    ),
}


@pytest.fixture(scope="module")
def frame():
    return bytearray(FRAME_SIZE)


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_in_a_large_frame_costs_next_to_nothing(name, frame):
    kind, version, head = BOMBS[name]
    data = bytes.fromhex(head)
    decode_or_refuse(kind, b"", version)  # The decoder is compiled when it is first used.
    frame[: len(data)] = data
    try:
        assert "announces" in str(decode_or_refuse(kind, memoryview(frame), version))
        assert work(kind, memoryview(frame), version) <= SECONDS_MAX
        assert peak(kind, memoryview(frame), version) <= SIZE_MAX
    finally:
        frame[: len(data)] = bytes(len(data))


@pytest.mark.parametrize("huge", ["7fffffff", "0fffffff", "ffffffff0f", "ffffff7f"])
def test_a_huge_number_anywhere_in_any_message_costs_next_to_nothing(huge):
    bomb = bytes.fromhex(huge)
    for kind, version in CASES:
        if version not in (versions_of(kind).first, versions_of(kind).last):
            continue
        data = encode(sample(kind, version, 2), version)
        decode(kind, data, version)
        for position in range(0, len(data), 7):
            mined = data[:position] + bomb + data[position + len(bomb) :]
            assert work(kind, mined, version) <= SECONDS_MAX


def test_items_of_all_levels_count_together():
    """The last of many topics has one partition more than all may have."""
    each = 1000
    topics = ITEM_COUNT_MAX // (each + 1)
    topic = bytes.fromhex("0000") + each.to_bytes(4, "big") + bytes(4 * each)
    rest = ITEM_COUNT_MAX - topics * (each + 1) - 1
    for more in (0, 1):
        last = bytes.fromhex("0000") + (rest + more).to_bytes(4, "big") + bytes(4 * (rest + more))
        head = bytes.fromhex("0000") + (topics + 1).to_bytes(4, "big")
        data = head + topic * topics + last
        if more:
            with pytest.raises(MalformedRequest, match=f"limit for all is {ITEM_COUNT_MAX}"):
                decode(OffsetFetchRequest, data, 1)
        else:
            assert len(decode(OffsetFetchRequest, data, 1).topics) == topics + 1


def test_tags_count_as_items():
    """Topics without a name, and each with as many tagged fields as fit."""
    each = 1000
    topic = bytes.fromhex("01") + bytes.fromhex("e807") + bytes(2 * each)
    topics = ITEM_COUNT_MAX // (each + 1) + 1
    assert topics == 262
    data = bytes.fromhex("8702") + topic * topics + bytes(4)
    with pytest.raises(MalformedRequest, match=f"limit for all is {ITEM_COUNT_MAX}"):
        decode(MetadataRequest, data, 9)


def decode_or_refuse(kind, data, version):
    try:
        decode(kind, data, version)
    except MalformedRequest as error:
        return error
    return None


def work(kind, data, version):
    """Seconds of work, the least of three: the collector of garbage may strike one of them."""
    runs = []
    for _ in range(3):
        started = time.process_time()
        decode_or_refuse(kind, data, version)
        runs.append(time.process_time() - started)
        if runs[-1] <= SECONDS_MAX:
            break
    return min(runs)


def peak(kind, data, version):
    """Most bytes in use."""
    tracemalloc.start()
    try:
        decode_or_refuse(kind, data, version)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
