"""Rewrite of segments: its output, what it leaves behind, and what stops it."""

from __future__ import annotations

import errno
import random
from array import array
from dataclasses import replace

import pytest

from millstream.errors import CorruptBatch, Stopping, StorageFailed
from millstream.records.batch import decode_header
from millstream.records.compression import Codec
from millstream.records.filter.batch_filter import FilterResult
from millstream.records.filter.keys.table import KeyTable
from millstream.records.filter.rules import AbortedOffsets, FilterRules
from millstream.records.iterate import read_all
from millstream.storage.compaction import rewrite as rewriting
from millstream.storage.compaction import rewrite_output, segment_chunks
from millstream.storage.compaction.rewrite import NEVER_MS, RewriteResult, fill_key_table, rewrite
from millstream.storage.compaction.segment_chunks import DamagedSegment, read_chunks
from millstream.storage.segment.segment import LogDirectory, SealedSegment, write_seal
from millstream.testing import Fault, FaultyFilesystem, SimulatedFilesystem

from .cleanings import (
    check_sound,
    data,
    headers_of,
    make_log_directory,
    make_segment,
    marker,
    offsets_of,
    produced,
)


def at_once(_: int) -> None:
    """Do not throttle."""


def rewrite_all(
    place: LogDirectory, inputs: list[SealedSegment], rules: FilterRules
) -> RewriteResult:
    found = rewrite(place, inputs, rules, throttle=at_once)
    if found.output is not None:
        check_sound(place, found.output.segment, found.output.index)
    return found


def rewritten(
    place: LogDirectory, inputs: list[SealedSegment], rules: FilterRules
) -> SealedSegment:
    found = rewrite_all(place, inputs, rules)
    assert found.output is not None
    return found.output.segment


def deleted(*offsets: int) -> FilterRules:
    return FilterRules(deleted=array("q", offsets))


def table_of(*segments: SealedSegment) -> KeyTable:
    table = KeyTable(memory_bytes_max=2**24, seed=3)
    for segment in segments:
        noted = fill_key_table(table, segment, FilterRules(aborted=[]), start=0, throttle=at_once)
        assert noted == segment.next_offset
    return table


def pairs(*keys: bytes) -> list[tuple[bytes, bytes]]:
    return [(key, b"value of " + key) for key in keys]


def files(place: LogDirectory) -> list[str]:
    return list(place.filesystem.list(place.directory))


# Output.


@pytest.mark.parametrize("chunk_size", [200, 1024, 2**20])
@pytest.mark.parametrize("seed", range(5))
def test_what_the_rules_leave_is_there_and_nothing_else(monkeypatch, chunk_size, seed):
    monkeypatch.setattr(segment_chunks, "CHUNK_SIZE", chunk_size)
    chance = random.Random(seed)
    place = make_log_directory()
    segments, base = [], 100
    for _ in range(4):
        batches = [
            data(
                *pairs(*(b"k%d" % chance.randrange(30) for _ in range(chance.randrange(1, 9)))),
                codec=chance.choice([Codec.NONE, Codec.ZSTD]),
            )
            for _ in range(chance.randrange(1, 12))
        ]
        segments.append(make_segment(place, batches, base_offset=base, leader_epoch=3))
        base = segments[-1].next_offset
    before = {record.offset: record for s in segments for record in read_all(s.view(0, s.size))}
    gone = sorted(chance.sample(sorted(before), len(before) // 2))
    segment = rewritten(place, segments, deleted(*gone))
    after = {record.offset: record for record in read_all(segment.view(0, segment.size))}
    assert after == {o: record for o, record in before.items() if o not in set(gone)}
    assert (segment.base_offset, segment.next_offset) == (100, base)
    assert segment.leader_epoch == 3


def test_offsets_that_nothing_covers_are_covered_by_one_filler():
    place = make_log_directory()
    segment = make_segment(place, [data(*pairs(b"a", b"b")) for _ in range(5)])
    assert headers_of(rewritten(place, [segment], deleted(2, 3, 4, 5, 7))) == [
        (0, 2, 2),
        (2, 6, 0),
        (6, 8, 1),
        (8, 10, 2),
    ]


@pytest.mark.parametrize("chunk_size", [100, 2**20])
def test_holes_that_meet_are_covered_together_across_chunks_and_segments(monkeypatch, chunk_size):
    monkeypatch.setattr(segment_chunks, "CHUNK_SIZE", chunk_size)
    place = make_log_directory()
    first = make_segment(place, [data(*pairs(b"a")) for _ in range(3)])
    second = make_segment(place, [data(*pairs(b"a")) for _ in range(3)], base_offset=3)
    found = rewritten(place, [first, second], deleted(1, 2, 3, 4))
    assert headers_of(found) == [(0, 1, 1), (1, 5, 0), (5, 6, 1)]


def test_fillers_of_an_earlier_rewrite_join_with_new_holes():
    place = make_log_directory()
    segment = make_segment(place, [data(*pairs(b"a")) for _ in range(6)])
    once = rewritten(place, [segment], deleted(1, 2))
    assert headers_of(once) == [(0, 1, 1), (1, 3, 0), (3, 4, 1), (4, 5, 1), (5, 6, 1)]
    assert headers_of(rewritten(place, [once], deleted(3))) == [
        (0, 1, 1),
        (1, 4, 0),
        (4, 5, 1),
        (5, 6, 1),
    ]


def test_a_segment_of_which_nothing_is_left_is_a_filler():
    place = make_log_directory()
    segment = make_segment(place, [data(*pairs(b"a", b"b"))], base_offset=7)
    found = rewritten(place, [segment], deleted(7, 8))
    assert headers_of(found) == [(7, 9, 0)]
    assert found.seal.record_count == 0


def test_a_segment_from_which_nothing_goes_is_left_alone_and_nothing_is_written():
    place = make_log_directory()
    segment = make_segment(place, [data(*pairs(b"a", b"b"))])
    before = files(place)
    found = rewrite_all(place, [segment], deleted(2, 3))
    assert found.output is None
    assert (found.bytes_read, found.bytes_written) == (segment.size, 0)
    assert files(place) == before


def test_a_segment_that_only_lost_the_use_of_empty_batches_is_left_alone():
    place = make_log_directory()
    segment = make_segment(place, [produced(5, 0, b"a"), data(*pairs(b"b")), data(*pairs(b"c"))])
    once = rewritten(place, [segment], deleted(0))
    assert headers_of(once) == [(0, 1, 0), (1, 2, 1), (2, 3, 1)]
    assert rewrite_all(place, [once], FilterRules()).output is None


@pytest.mark.parametrize("number", range(6))
def test_what_lies_before_the_first_difference_is_copied_as_it_is(monkeypatch, number):
    monkeypatch.setattr(segment_chunks, "CHUNK_SIZE", 100)
    place = make_log_directory()
    segment = make_segment(place, [data(*pairs(b"a", b"b")) for _ in range(6)])
    found = rewritten(place, [segment], deleted(2 * number))
    assert offsets_of(found) == [o for o in range(12) if o != 2 * number]
    before = segment.view(0, segment.size)
    size = number * len(before) // 6
    assert bytes(found.view(0, size)) == bytes(before[:size])


def test_segments_from_which_nothing_goes_are_merged_all_the_same():
    place = make_log_directory()
    first = make_segment(place, [data(*pairs(b"a"))])
    second = make_segment(place, [data(*pairs(b"b"))], base_offset=1)
    found = rewritten(place, [first, second], FilterRules())
    assert bytes(found.view(0, found.size)) == (
        bytes(first.view(0, first.size)) + bytes(second.view(0, second.size))
    )


def test_an_output_is_one_generation_above_its_inputs():
    place = make_log_directory()
    first = make_segment(place, [data(*pairs(b"a", b"b"))], generation=4)
    second = make_segment(place, [data(*pairs(b"b"))], base_offset=2, generation=2)
    found = rewritten(place, [first, second], deleted(0))
    assert found.generation == 5
    assert found.path == "/log/00000000000000000000.5.log"
    assert rewritten(place, [found], deleted(1)).generation == 6


def test_records_do_not_get_younger_by_being_rewritten():
    place = make_log_directory()
    batches = [data(*pairs(b"a"))]
    first = make_segment(place, batches, created_ms=50, sealed_ms=60)
    second = make_segment(place, batches, base_offset=1, created_ms=40, sealed_ms=90)
    third = make_segment(place, batches, base_offset=2, created_ms=70, sealed_ms=80)
    seal = rewritten(place, [first, second, third], FilterRules()).seal
    assert (seal.created_ms, seal.sealed_ms) == (40, 90)


def test_a_batch_larger_than_a_chunk_comes_alone(monkeypatch):
    monkeypatch.setattr(segment_chunks, "CHUNK_SIZE", 128)
    place = make_log_directory()
    large = data((b"large", b"x" * 1000))
    segment = make_segment(place, [data(*pairs(b"a")), large, data(*pairs(b"b")), large])
    assert [len(chunk.headers) for chunk in read_chunks(segment)] == [1, 1, 1, 1]
    assert offsets_of(rewritten(place, [segment], deleted(2))) == [0, 1, 3]


def test_reading_from_an_offset_leaves_out_what_ends_before_it(monkeypatch):
    monkeypatch.setattr(segment_chunks, "CHUNK_SIZE", 200)
    place = make_log_directory()
    segment = make_segment(place, [data(*pairs(b"a", b"b")) for _ in range(6)])
    for start in range(13):
        found = [h.base_offset for c in read_chunks(segment, start=start) for h in c.headers]
        assert found == list(range(start // 2 * 2, 12, 2))


# Records and headers that stay.


def test_the_last_batch_and_marker_of_each_producer_stay_as_headers():
    place = make_log_directory()
    segment = make_segment(
        place,
        [
            produced(1, 0, b"a"),
            produced(2, 0, b"a"),
            produced(1, 1, b"a", is_transactional=True),
            marker(1, is_commit=True),
            produced(2, 1, b"a"),
            produced(1, 2, b"a", is_transactional=True),
            marker(1, is_commit=True),
            data((b"a", b"latest")),
        ],
    )
    rules = FilterRules(key_table=table_of(segment), aborted=[])
    found = rewritten(place, [segment], rules)
    assert headers_of(found) == [(0, 4, 0), (4, 5, 0), (5, 6, 0), (6, 7, 1), (7, 8, 1)]
    view, left = found.view(0, found.size), {}
    for chunk in read_chunks(found):
        for header in chunk.headers:
            left[header.base_offset] = header
    assert (left[4].producer_id, left[4].base_sequence) == (2, 1)
    assert (left[5].producer_id, left[5].base_sequence) == (1, 2)
    assert not left[5].is_transactional
    assert left[6].is_control
    assert [record.value for record in read_all(view)] == [b"latest"]


def test_markers_stay_where_they_are_needed():
    place = make_log_directory()
    batches = [
        produced(1, 0, b"a", is_transactional=True),
        marker(1, is_commit=True),
        produced(1, 1, b"b", is_transactional=True),
        marker(1, is_commit=True),
    ]
    segment = make_segment(place, batches)
    found = rewrite(place, [segment], FilterRules(aborted=[]), keeps_markers=True, throttle=at_once)
    assert found.output is not None
    assert [end for _, end, _ in headers_of(found.output.segment)] == [1, 2, 3, 4]
    found.output.segment.forget()  # The next one overwrites it.
    assert rewrite_all(place, [segment], FilterRules(aborted=[])).removed_records == 1


def test_records_of_aborted_transactions_go_and_committed_ones_are_settled():
    place = make_log_directory()
    segment = make_segment(
        place,
        [
            produced(1, 0, b"a", b"b", is_transactional=True),
            produced(2, 0, b"a", is_transactional=True),
            marker(1, is_commit=False),
            marker(2, is_commit=True),
        ],
    )
    aborted = [AbortedOffsets(producer_id=1, first_offset=0, last_offset=3)]
    found = rewritten(place, [segment], FilterRules(aborted=aborted))
    assert offsets_of(found) == [2]
    assert not any(
        decode_header(chunk.data).is_transactional and not decode_header(chunk.data).is_control
        for chunk in read_chunks(found)
    )


# Tombstones.


def test_it_is_told_when_the_next_tombstone_may_go():
    place = make_log_directory()
    segment = make_segment(place, [data((b"a", None)), data((b"b", b"x")), data((b"c", None))])
    rules = FilterRules(now_ms=5_000, tombstone_ms=700)
    found = rewrite_all(place, [segment], rules)
    assert found.output is not None
    assert found.tombstones_due_ms == 5_700
    again = rewrite_all(place, [found.output.segment], replace(rules, now_ms=5_699))
    assert (again.output, again.tombstones_due_ms) == (None, 5_700)
    last = rewrite_all(place, [found.output.segment], replace(rules, now_ms=5_700))
    assert last.output is not None
    assert offsets_of(last.output.segment) == [1]
    assert last.tombstones_due_ms == NEVER_MS


def test_tombstones_stay_undated_where_their_date_would_make_a_segment_too_large(monkeypatch):
    place = make_log_directory()
    segment = make_segment(place, [data((b"a", None), *pairs(*[b"k"] * 20)), data(*pairs(b"x"))])
    monkeypatch.setattr(rewrite_output, "OUTPUT_SIZE_MAX", segment.size)
    rules = FilterRules(now_ms=2**50, tombstone_ms=1)
    assert rewrite_all(place, [segment], rules).output is None
    found = rewrite_all(place, [segment], replace(rules, deleted=array("q", [21])))
    assert found.output is not None
    assert offsets_of(found.output.segment) == list(range(21))
    assert found.tombstones_due_ms == NEVER_MS


def test_what_is_too_large_for_a_segment_is_not_written(monkeypatch):
    place = make_log_directory()
    first = make_segment(place, [data(*pairs(b"a"))])
    second = make_segment(place, [data(*pairs(b"a"))], base_offset=1)
    monkeypatch.setattr(rewrite_output, "OUTPUT_SIZE_MAX", 150)
    before = files(place)
    with pytest.raises(StorageFailed, match="at most 150 bytes"):
        rewrite(place, [first, second], FilterRules(), throttle=at_once)
    assert files(place) == before


# Filling the key table.


def test_memory_that_does_not_last_ends_at_the_start_of_a_batch(monkeypatch):
    monkeypatch.setattr(segment_chunks, "CHUNK_SIZE", 4096)
    place = make_log_directory()
    batches = [data(*((b"%8d" % (100 * n + i), b"v") for i in range(100))) for n in range(100)]
    segment = make_segment(place, batches)
    table = KeyTable(memory_bytes_max=2**17, seed=3)
    noted = fill_key_table(table, segment, FilterRules(), start=0, throttle=at_once)
    assert 0 < noted < segment.next_offset
    assert noted % 100 == 0
    assert table.count >= noted
    table = KeyTable(memory_bytes_max=2**24, seed=3)
    assert fill_key_table(table, segment, FilterRules(), start=noted, throttle=at_once) == 10_000
    assert table.count == 10_000 - noted


# Failures and interruption.


DAMAGES = {
    "a bit of a record": lambda disk, path: disk.flip_bit(path, 8 * 90),
    "a bit of an offset": lambda disk, path: disk.flip_bit(path, 8 * 7),
    "a bit of an epoch": lambda disk, path: disk.flip_bit(path, 8 * 15),
    "a bit of a length": lambda disk, path: disk.flip_bit(path, 8 * 10),
    "a missing end": lambda disk, path: disk.cut(path, disk.size(path) - 1),
    "a missing batch": lambda disk, path: disk.cut(path, disk.size(path) // 3 * 2),
    "all bytes missing": lambda disk, path: disk.cut(path, 0),
    "the file missing": lambda disk, path: disk.remove(path),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_input_is_named_and_nothing_is_left_behind(damage, number):
    disk = SimulatedFilesystem()
    place = make_log_directory(disk)
    batches = [data(*pairs(b"a", b"b")) for _ in range(3)]
    segments = [make_segment(place, batches), make_segment(place, batches, base_offset=6)]
    DAMAGES[damage](disk, segments[number].path)
    before = files(place)
    with pytest.raises(DamagedSegment) as caught:
        rewrite(place, segments, deleted(0), throttle=at_once)
    assert caught.value.segment is segments[number]
    assert segments[number].path in str(caught.value)
    assert files(place) == before


def test_a_segment_that_ends_before_its_seal_says_so_is_damaged():
    place = make_log_directory()
    segment = make_segment(place, [data(*pairs(b"a", b"b"))])
    longer = SealedSegment(place, replace(segment.seal, next_offset=3))
    with pytest.raises(DamagedSegment, match="end offset must be 3, as its seal says, got 2"):
        rewrite(place, [longer], deleted(0), throttle=at_once)


def test_what_is_written_in_place_of_a_batch_is_checked_before_that_goes(monkeypatch):
    def filter_badly(chunk: memoryview, _: FilterRules) -> FilterResult:
        return FilterResult([bytes(chunk[:-1]) + b"?"], 1, 1)

    monkeypatch.setattr(rewriting, "filter_batches", filter_badly)
    place = make_log_directory()
    segment = make_segment(place, [data(*pairs(b"a", b"b"))])
    before = files(place)
    with pytest.raises(CorruptBatch, match="batch checksum is"):
        rewrite(place, [segment], deleted(0), throttle=at_once)
    assert files(place) == before


def test_what_a_disk_refuses_for_now_is_nobodys_damage():
    inner = SimulatedFilesystem()
    segment = make_segment(make_log_directory(inner), [data(*pairs(b"a", b"b"))])
    fault = Fault(call=1, error=errno.EMFILE, only={"open_readonly"})
    place = make_log_directory(FaultyFilesystem(inner, fault))
    with pytest.raises(OSError, match="Too many open files"):
        rewrite(place, [SealedSegment(place, segment.seal)], deleted(0), throttle=at_once)


@pytest.mark.parametrize("kind", ["create", "write_at", "sync", "close", "rename"])
def test_a_full_disk_leaves_nothing_behind(kind):
    inner = SimulatedFilesystem()
    segment = make_segment(make_log_directory(inner), [data(*pairs(b"a", b"b"))])
    before = set(inner.paths())
    fault = Fault(call=1, error=errno.ENOSPC, only={kind}, path=".1.log")
    place = make_log_directory(FaultyFilesystem(inner, fault))
    with pytest.raises(OSError, match="No space left"):
        rewrite(place, [SealedSegment(place, segment.seal)], deleted(0), throttle=at_once)
    assert fault.hits
    assert set(inner.paths()) == before


def test_what_cannot_be_removed_is_overwritten_the_next_time(caplog):
    inner = SimulatedFilesystem()
    segment = make_segment(make_log_directory(inner), [data(*pairs(b"a", b"b"))])
    fault = Fault(call=2, forever=True, only={"sync", "remove"}, path=".1.log")
    place = make_log_directory(FaultyFilesystem(inner, fault))
    with pytest.raises(OSError, match="Input/output error"):
        rewrite(place, [SealedSegment(place, segment.seal)], deleted(0), throttle=at_once)
    assert "/log/00000000000000000000.1.log.tmp" in inner.paths()
    assert "could not be removed; it is removed when the log is opened next" in caplog.text
    place = make_log_directory(inner)
    assert offsets_of(rewritten(place, [SealedSegment(place, segment.seal)], deleted(0))) == [1]
    assert not any(path.endswith(".tmp") for path in inner.paths())


@pytest.mark.parametrize("step", range(12))
def test_it_stops_between_any_two_chunks_and_leaves_nothing_behind(monkeypatch, step):
    monkeypatch.setattr(segment_chunks, "CHUNK_SIZE", 100)
    place = make_log_directory()
    segment = make_segment(place, [data(*pairs(b"a", b"b")) for _ in range(3)])
    before, steps = files(place), []

    def throttle(size: int) -> None:
        steps.append(size)
        if len(steps) == step + 1:
            raise Stopping("enough")

    try:
        found = rewrite(place, [segment], deleted(4), throttle=throttle)
    except Stopping:
        assert files(place) == before
    else:
        assert found.output is not None
        assert len(steps) <= step
        assert sum(steps) == pytest.approx(found.bytes_read + found.bytes_written, rel=0.5)


def test_the_output_is_durable_but_for_its_name_and_its_seal_makes_it_whole():
    disk = SimulatedFilesystem()
    place = make_log_directory(disk)
    segment = make_segment(place, [data(*pairs(b"a", b"b"))])
    found = rewrite_all(place, [segment], deleted(0)).output
    assert found is not None
    write_seal(place, found.segment.seal, found.index, found.segment.generation)
    for seed in range(20):
        after = disk.crash(seed)
        assert after.content(found.segment.path) == bytes(found.segment.view(0, found.segment.size))
