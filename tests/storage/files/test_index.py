"""The index of a segment finds the same position as a scan of the log."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptFile, UnknownFormat
from millstream.records.batch import HEADER_SIZE, decode_header, stamp
from millstream.records.build import build_batch
from millstream.records.record import Record
from millstream.storage.disk.file_cache import FileCache
from millstream.storage.files.index import (
    ENTRY_SIZE,
    INDEX_HEADER_SIZE,
    NO_TIME,
    IndexEntry,
    SegmentIndex,
    decode_index,
    encode_index,
)
from millstream.storage.files.seal import SegmentStats
from millstream.storage.segment.scan import scan
from millstream.storage.segment.segment import GrowingSegment, LogDirectory
from millstream.testing import SimulatedFilesystem

HEADER = struct.Struct("<4sHHqqqII")
BASE = 1_000
LOG_SIZE = 9_000

ENTRIES = [
    IndexEntry(1_000, 0, NO_TIME),
    IndexEntry(1_010, 3_000, 50),
    IndexEntry(1_011, 6_000, 50),
    IndexEntry(1_300, 8_999, 7_000),
]

GOLDEN = bytes.fromhex(
    "4d534958 0100 1800 e803000000000000 2823000000000000 0200000000000000 00000000 00000000"
    "e803000000000000 0000000000000000 0000000000000080"
    "f203000000000000 b80b000000000000 3200000000000000"
)
"""Written by hand from the picture in `index.py`, with zeros for the checksum."""


def make_index(entries: list[IndexEntry]) -> SegmentIndex:
    index = SegmentIndex()
    for entry in entries:
        index.add(*entry)
    return index


def encoded(entries: list[IndexEntry]) -> bytes:
    return encode_index(make_index(entries), base_offset=BASE, log_size=LOG_SIZE)


def decoded(data: bytes, *, base_offset: int = BASE, log_size: int = LOG_SIZE) -> SegmentIndex:
    return decode_index(memoryview(data), base_offset=base_offset, log_size=log_size)


def with_fields(data: bytes, **changes: int | bytes) -> bytes:
    """An index with other header fields and a correct checksum."""
    names = ("magic", "version", "entry_size", "base", "size", "count", "crc", "pad")
    fields = dict(zip(names, HEADER.unpack_from(data), strict=True)) | {"crc": 0} | changes
    blank = HEADER.pack(*fields.values())
    fields["crc"] = crc32c(data[INDEX_HEADER_SIZE:], crc32c(blank))
    return HEADER.pack(*fields.values()) + data[INDEX_HEADER_SIZE:]


# Lookups, against a walk over all entries.


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Offset, position and greatest timestamp of each batch; timestamps are in random order."""
    offset, position, found = draw(st.integers(0, 50)), 0, []
    for _ in range(draw(st.integers(1, 30))):
        found.append((offset, position, draw(st.integers(-20, 20))))
        offset += draw(st.integers(1, 5))
        position += draw(st.integers(61, 200))
    return found


def index_of(log: list[tuple[int, int, int]], *, interval: int) -> SegmentIndex:
    """Index a log as the writer does: the first batch, and then one every `interval` bytes."""
    index, latest, indexed = SegmentIndex(), NO_TIME, -interval
    for offset, position, timestamp in log:
        if position - indexed >= interval:
            index.add(offset, position, latest)
            indexed = position
        latest = max(latest, timestamp)
    return index


def last_at_or_before(index: SegmentIndex, column: int, wanted: int) -> IndexEntry:
    entries = [index[number] for number in range(len(index))]
    return [entries[0], *(entry for entry in entries if entry[column] <= wanted)][-1]


@given(log=batches(), interval=st.integers(64, 700), wanted=st.integers(-5, 250))
def test_an_offset_leads_to_the_last_entry_that_is_not_after_it(log, interval, wanted):
    index = index_of(log, interval=interval)
    assert index.for_offset(wanted) == last_at_or_before(index, 0, wanted)


@given(log=batches(), interval=st.integers(64, 700), wanted=st.integers(-5, 7_000))
def test_a_position_leads_to_the_last_entry_that_is_not_after_it(log, interval, wanted):
    index = index_of(log, interval=interval)
    assert index.for_position(wanted) == last_at_or_before(index, 1, wanted)


@given(log=batches(), interval=st.integers(64, 700), wanted=st.integers(-25, 25))
def test_a_time_leads_to_an_entry_that_no_matching_batch_lies_before(log, interval, wanted):
    found = index_of(log, interval=interval).for_timestamp(wanted)
    matching = [offset for offset, _, timestamp in log if timestamp >= wanted]
    assert all(offset >= found.offset for offset in matching)


@given(log=batches(), interval=st.integers(64, 700), wanted=st.integers(-25, 25))
def test_a_time_leads_no_further_back_than_it_must(log, interval, wanted):
    index = index_of(log, interval=interval)
    found = index.for_timestamp(wanted)
    later = [
        entry
        for entry in map(index.__getitem__, range(len(index)))
        if entry.offset > found.offset and entry.timestamp_before < wanted
    ]
    assert later == []


@pytest.mark.parametrize("step", [-1, 0, 1])
@pytest.mark.parametrize("number", range(1, len(ENTRIES)))
def test_an_entry_is_found_from_its_own_offset_and_position_on(number, step):
    index, entry = make_index(ENTRIES), ENTRIES[number]
    found = ENTRIES[number - 1] if step < 0 else entry
    assert index.for_position(entry.position + step) == found
    if entry.offset + step != 1_011:
        assert index.for_offset(entry.offset + step) == found


def test_what_lies_before_the_first_entry_leads_to_the_first():
    index = make_index(ENTRIES)
    assert index.for_offset(0) == ENTRIES[0]
    assert index.for_position(-1) == ENTRIES[0]
    assert index.for_timestamp(NO_TIME) == ENTRIES[0]


def test_what_lies_after_the_last_entry_leads_to_the_last():
    index = make_index(ENTRIES)
    assert index.for_offset(2**63 - 1) == ENTRIES[-1]
    assert index.for_position(2**63 - 1) == ENTRIES[-1]
    assert index.for_timestamp(2**63 - 1) == ENTRIES[-1]


@pytest.mark.parametrize(
    ("timestamp_ms", "found"), [(49, 0), (50, 0), (51, 2), (7_000, 2), (7_001, 3)]
)
def test_a_time_that_an_entry_has_before_it_leads_to_the_entry_in_front(timestamp_ms, found):
    assert make_index(ENTRIES).for_timestamp(timestamp_ms) == ENTRIES[found]


# Which batches get an entry.


def batch(offset: int, timestamp_ms: int) -> bytes:
    records = [Record(b"x" * 40, timestamp_ms=timestamp_ms)]
    return stamp(build_batch(records, now_ms=0), base_offset=offset, leader_epoch=0)


@pytest.mark.parametrize(
    ("interval_batches", "more", "entries"),
    [(1, 0, [0, 1, 2, 3, 4, 5]), (2, 0, [0, 2, 4]), (2, 1, [0, 3]), (9, 0, [0])],
)
def test_a_batch_gets_an_entry_once_the_interval_is_full(interval_batches, more, entries):
    batches = [batch(number, 100 - number) for number in range(6)]
    size = len(batches[0])
    interval = interval_batches * size + more
    place = LogDirectory(SimulatedFilesystem(), "/", FileCache(1), FileCache(1), interval)
    growing = GrowingSegment(
        place, SegmentStats(0, leader_epoch=0, created_ms=0), SegmentIndex(), None
    )
    for data in batches:
        growing.add(decode_header(data), size, data[:HEADER_SIZE])
    scanned = scan(
        memoryview(b"".join(batches)), base_offset=0, created_ms=0, index_interval_bytes=interval
    ).index
    expected = [IndexEntry(n, n * size, 100 if n else NO_TIME) for n in entries]
    for index in (growing.index(), scanned):
        assert [index[number] for number in range(len(index))] == expected


# The file.


def test_an_index_lies_as_it_is_drawn():
    crc = struct.pack("<I", crc32c(GOLDEN))
    assert encoded(ENTRIES[:2]) == GOLDEN[:32] + crc + GOLDEN[36:]
    assert HEADER.size == INDEX_HEADER_SIZE == 40


@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 3), min_size=1, max_size=20))
def test_an_index_reads_back_as_it_was_written(entries):
    entries = [IndexEntry(*entry) for entry in entries]
    read = decoded(encoded(entries))
    assert [read[number] for number in range(len(read))] == entries


def test_an_index_of_an_empty_log_may_be_empty():
    data = encode_index(SegmentIndex(), base_offset=BASE, log_size=0)
    assert len(decoded(data, log_size=0)) == 0


def test_an_index_of_a_log_with_bytes_must_not_be_empty():
    with pytest.raises(CorruptFile, match="says 0 entries"):
        decoded(encoded([]))


def test_every_cut_of_an_index_is_refused():
    data = encoded(ENTRIES)
    for size in range(len(data)):
        with pytest.raises(CorruptFile):
            decoded(data[:size])


def test_every_flipped_bit_of_an_index_is_refused():
    data = encoded(ENTRIES)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFile):
            decoded(bytes(damaged))


@pytest.mark.parametrize("trailing", [b"!", bytes(ENTRY_SIZE)])
def test_bytes_behind_an_index_are_refused(trailing):
    with pytest.raises(CorruptFile):
        decoded(encoded(ENTRIES) + trailing)


def test_an_index_of_another_segment_is_refused_with_both_numbers():
    with pytest.raises(CorruptFile, match=r"base offset 1000 .* expected 1001"):
        decoded(encoded(ENTRIES), base_offset=BASE + 1)


def test_an_index_of_another_state_of_the_log_is_refused_with_both_numbers():
    with pytest.raises(CorruptFile, match="log size 9000, expected 1000 and 9001"):
        decoded(encoded(ENTRIES), log_size=LOG_SIZE + 1)


@pytest.mark.parametrize("count", [-1, 0, 3, 5, 2**62])
def test_an_index_that_claims_another_number_of_entries_is_refused(count):
    with pytest.raises(CorruptFile, match=f"says {count} entries"):
        decoded(with_fields(encoded(ENTRIES), count=count))


def test_an_index_of_a_newer_version_is_unknown_and_not_corrupt():
    with pytest.raises(UnknownFormat, match="has version 2, expected 1"):
        decoded(with_fields(encoded(ENTRIES), version=2))


def test_an_index_with_entries_of_another_size_is_unknown_and_not_corrupt():
    with pytest.raises(UnknownFormat):
        decoded(with_fields(encoded(ENTRIES), entry_size=32))


def test_another_file_with_a_right_sum_is_no_index():
    with pytest.raises(CorruptFile, match="starts with b'MSSL'"):
        decoded(with_fields(encoded(ENTRIES), magic=b"MSSL"))


def test_bytes_that_must_be_zero_are_checked():
    with pytest.raises(CorruptFile):
        decoded(with_fields(encoded(ENTRIES), pad=1))


@given(st.binary(max_size=120))
def test_noise_is_refused(noise):
    with pytest.raises(CorruptFile):
        decoded(noise)


# Growing on.


@pytest.mark.parametrize("source", ["grown", "read from its file"])
def test_a_growing_copy_leaves_the_original_alone(source):
    original = make_index(ENTRIES) if source == "grown" else decoded(encoded(ENTRIES))
    copy = original.growing()
    copy.add(2_000, 10_000, 8_000)
    assert len(original) == len(ENTRIES)
    assert [copy[number] for number in range(len(copy))] == [
        *ENTRIES,
        IndexEntry(2_000, 10_000, 8_000),
    ]


def test_a_growing_copy_does_not_see_what_the_original_gets():
    original = make_index(ENTRIES)
    copy = original.growing()
    original.add(2_000, 10_000, 8_000)
    assert len(copy) == len(ENTRIES)


def test_an_index_that_was_read_from_a_file_does_not_grow():
    with pytest.raises(AssertionError, match="does not grow"):
        decoded(encoded(ENTRIES)).add(2_000, 10_000, 8_000)
