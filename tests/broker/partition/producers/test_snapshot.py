"""The producer snapshot file of a partition."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from millstream.broker.partition.producers.aborted_index import AbortedRange
from millstream.broker.partition.producers.entry import NOTHING, AppendedBatch, ProducerEntry
from millstream.broker.partition.producers.snapshot import (
    SNAPSHOT_FILE,
    decode_snapshot,
    encode_snapshot,
    read_snapshot,
    remove_snapshot,
    write_snapshot,
)
from millstream.broker.partition.producers.states import ProducerSnapshot
from millstream.errors import CorruptFile, UnknownFormat
from millstream.storage.disk.memory_filesystem import MemoryFilesystem
from millstream.testing import SimulatedFilesystem

BATCHES = tuple(
    AppendedBatch(n, n, 10 + n, 10 + n, 1_700_000_000_000, 0xFFFFFFFF - n) for n in range(5)
)
FOUND = ProducerSnapshot(
    1234,
    {
        1: ProducerEntry(0, BATCHES, 12, 3, 4, 99, seen_ms=500),
        2**62: ProducerEntry(32767, (), seen_ms=1000),
    },
    [AbortedRange(1, 2, 3, 4), AbortedRange(2, 3, 4, 5)],
    forgotten_max=77,
)


VERSION_1 = bytes.fromhex(
    "4d5350524f4455430001000000000000000004d2deadbeef0000000200000002000000000000004d00000000"
    "00000001000000000004000000000000000c0000000000000003000000000000006300000000000001f40500"
    "00000000000000000000000000000a000000000000000a0000018bcfe5680000000001000000010000000000"
    "00000b000000000000000b0000018bcfe568000000000200000002000000000000000c000000000000000c00"
    "00018bcfe568000000000300000003000000000000000d000000000000000d0000018bcfe568000000000400"
    "000004000000000000000e000000000000000e0000018bcfe5680040000000000000007fffffffffffffffff"
    "ffffffffffffffffffffffffffffffffffffffffff0000000000000000000000000000000001000000000000"
    "0002000000000000000300000000000000040000000000000002000000000000000300000000000000040000"
    "000000000005d0cdb716"
)
"""The same state, written by the release before batches had a checksum."""


def encoded(found: ProducerSnapshot = FOUND) -> bytes:
    return encode_snapshot(found, tail_crc=0xDEADBEEF, now_ms=1000)


def test_what_is_written_is_read_again():
    assert decode_snapshot(encoded(), now_ms=1000) == (FOUND, 0xDEADBEEF)


def test_a_snapshot_of_version_1_is_read_without_checksums():
    found, tail_crc = decode_snapshot(VERSION_1, now_ms=1000)
    first = FOUND.entries[1]
    batches = tuple(batch._replace(crc=NOTHING) for batch in first.batches)
    assert tail_crc == 0xDEADBEEF
    assert found.entries == {**FOUND.entries, 1: first._replace(batches=batches)}
    assert (found.offset, list(found.aborted)) == (FOUND.offset, list(FOUND.aborted))


def test_idle_time_goes_on_where_it_stopped_whatever_the_clock_says_then():
    found, _ = decode_snapshot(encoded(), now_ms=50)
    assert found.entries[1].seen_ms == -450
    assert found.entries[2**62].seen_ms == 50


def test_nothing_to_remember_is_remembered():
    empty = ProducerSnapshot(0, {}, [])
    assert decode_snapshot(encoded(empty), now_ms=1000)[0] == empty


def test_every_flipped_bit_is_found():
    data = encoded()
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFile):
            decode_snapshot(bytes(damaged), now_ms=0)


def test_every_cut_is_found():
    data = encoded()
    for size in range(len(data)):
        with pytest.raises(CorruptFile):
            decode_snapshot(data[:size], now_ms=0)


def test_trailing_bytes_are_found():
    with pytest.raises(CorruptFile):
        decode_snapshot(encoded() + b"\0", now_ms=0)


@pytest.mark.parametrize("position", [24, 28, 86])
def test_counts_that_contradict_the_size_are_found_though_the_sum_is_right(position):
    body = bytearray(encoded()[:-4])
    body[position] ^= 0x40
    with pytest.raises(CorruptFile):
        decode_snapshot(bytes(body) + struct.pack(">I", crc32c(body)), now_ms=0)


def test_a_newer_version_is_refused_untouched():
    body = bytearray(encoded()[:-4])
    body[9] = 3
    with pytest.raises(UnknownFormat, match="snapshot has version 3, expected 1 or 2"):
        decode_snapshot(bytes(body) + struct.pack(">I", crc32c(body)), now_ms=0)


@pytest.mark.parametrize("make", [SimulatedFilesystem, lambda: MemoryFilesystem(1 << 20)])
def test_it_is_a_file_on_any_file_system(make):
    filesystem = make()
    filesystem.make_directory("/p")
    write_snapshot(filesystem, "/p", FOUND, tail_crc=1, now_ms=1000)
    assert read_snapshot(filesystem, "/p", now_ms=1000) == (FOUND, 1)
    remove_snapshot(filesystem, "/p")
    with pytest.raises(FileNotFoundError):
        read_snapshot(filesystem, "/p", now_ms=1000)


def test_it_is_durable_when_it_is_written_and_gone_when_it_is_removed():
    filesystem = SimulatedFilesystem({"/p": None})
    write_snapshot(filesystem, "/p", FOUND, tail_crc=1, now_ms=1000)
    after = filesystem.crash()
    assert read_snapshot(after, "/p", now_ms=1000) == (FOUND, 1)
    remove_snapshot(after, "/p")
    with pytest.raises(FileNotFoundError):
        read_snapshot(after.crash(), "/p", now_ms=1000)


def test_a_damaged_one_names_its_path():
    filesystem = SimulatedFilesystem({"/p": None, f"/p/{SNAPSHOT_FILE}": b"nothing"})
    with pytest.raises(CorruptFile, match=f"/p/{SNAPSHOT_FILE}: snapshot must have"):
        read_snapshot(filesystem, "/p", now_ms=0)
